"""It learns what is rewarded, and nothing where rewards are noise."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.credit import assign_credit
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.integration.train.learner.conftest import MakeLearner
from tests.integration.train.learner.samples import BASE, action

PROMPTS = [(5, 6, 7, 8, 9), (5, 6, 7, 10)]
VOCABULARY = range(3, 259)
UPDATES, EPISODES = 12, 12

Judge = Callable[[list[ScoredAction], random.Random], list[ScoredAction]]


def even_is_good(actions: list[ScoredAction], _rng: random.Random) -> list[ScoredAction]:
    return [replace(a, score=10.0 if a.token_ids[0] % 2 == 0 else 0.0) for a in actions]


def shuffled(actions: list[ScoredAction], rng: random.Random) -> list[ScoredAction]:
    """The same scores, dealt to the wrong actions."""
    scores = [a.score for a in even_is_good(actions, rng)]
    rng.shuffle(scores)
    return [replace(a, score=score) for a, score in zip(actions, scores, strict=True)]


def distribution(
    learner: TorchLearner, policy: PolicyVersion, prompt: tuple[int, ...]
) -> list[float]:
    """Log-probabilities of every one-token reply."""
    replies = [action(prompt, [token], token) for token in VOCABULARY]
    return [row[0] for row in learner.logprobs(policy, replies)]


def chance_of_even(learner: TorchLearner, policy: PolicyVersion) -> float:
    """Exact, over both prompts, among the tokens that can be drawn."""
    chances = []
    for prompt in PROMPTS:
        weights = [math.exp(value) for value in distribution(learner, policy, prompt)]
        chances.append(sum(weights[1::2]) / sum(weights))  # the first token is 3
    return sum(chances) / len(chances)


def train(learner: TorchLearner, judge: Judge) -> PolicyVersion:
    rng, policy = random.Random(0), BASE
    for _ in range(UPDATES):
        drawn: list[ScoredAction] = []
        for prompt in PROMPTS:
            logprobs = distribution(learner, policy, prompt)
            weights = [math.exp(value) for value in logprobs]
            for token in rng.choices(VOCABULARY, weights, k=EPISODES):
                one = action(prompt, [token], len(drawn))
                drawn.append(replace(one, logprobs=(logprobs[token - 3],)))
        credit = assign_credit(judge(drawn, rng), AlgorithmConfig())
        policy = learner.update(
            policy, credit.samples, AlgorithmConfig(), total_steps=UPDATES, seed=1
        ).policy
    return policy


def test_what_is_rewarded_becomes_likely_and_shuffled_rewards_do_not(
    make_learner: MakeLearner,
) -> None:
    learner = make_learner(learning_rate=1e-2)
    before = chance_of_even(learner, BASE)
    assert 0.3 < before < 0.7
    assert chance_of_even(learner, train(learner, even_is_good)) > 0.9
    assert chance_of_even(learner, train(learner, shuffled)) < before + 0.2
