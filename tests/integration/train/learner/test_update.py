"""One agent's update, from the rows of a real store to new weights, with what sampling leaves."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from mappa_core.core.records.episodes import Outcome, StopReason
from mappa_core.core.records.runs import Run
from mappa_core.core.records.updates import Update
from mappa_core.store.store import Store
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.update import UpdateRequest, base_policy, update_agent
from tests.builders import make_episode, make_problem, make_run, make_score, make_turn
from tests.integration.train.learner.conftest import MakeLearner

RIGHT = Outcome(success=True, answer="5", method="exact")
SAID = ((7, 8, 2), (9, 2), (11, 12, 13, 2), (5, 2))
SCORES = (9.0, 2.0, 5.0, 7.5)
Train = Callable[..., Update]


@pytest.fixture
def train(store: Store, tiny_model: Path, make_learner: MakeLearner) -> Train:
    """Store one action for each of some responses, as sampled, and update the agent on them."""

    def run_and_update(
        name: str,
        algorithm: AlgorithmConfig,
        said: Sequence[tuple[int, ...]] = SAID,
        *,
        temperature: float = 1.0,
        off: float = 0.0,
    ) -> Update:
        run = make_run(name)
        store.runs.add_run(run)
        store.episodes.add_problems([make_problem()])
        store.policies.add_policy_version(base_policy(run.id, "solver", str(tiny_model)))
        for index, (tokens, score) in enumerate(zip(said, SCORES, strict=True)):
            logprobs = tuple(one + off for one in plain(tiny_model, tokens, temperature))
            play(store, run, index, tokens, logprobs, temperature, score)
        request = UpdateRequest(
            run_id=run.id,
            agent="solver",
            iteration=1,
            algorithm=algorithm,
            total_steps=2,
            seed=1,
        )
        return update_agent(request, learner=make_learner(), store=store)

    return run_and_update


def plain(model: Path, tokens: tuple[int, ...], temperature: float) -> tuple[float, ...]:
    """Log-probabilities by transformers' own forward pass; (T,)."""
    if not tokens:
        return ()
    prompt = make_turn(base_policy(make_run().id, "solver", "")).action.prompt_token_ids
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        logits = base(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    rows = (logits / temperature).log_softmax(-1)
    return tuple(rows.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist())


def play(
    store: Store,
    run: Run,
    index: int,
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...],
    temperature: float,
    score: float,
) -> None:
    episode = make_episode(run, make_problem(), rollout_index=index)
    store.episodes.open_episode(episode)
    turn = make_turn(base_policy(run.id, "solver", ""), token_ids=tokens)
    action = replace(turn.action, logprobs=logprobs, temperature=temperature)
    store.episodes.add_turn(episode, replace(turn, action=action))
    store.episodes.close_episode(episode.closed(StopReason.ANSWERED, outcome=RIGHT))
    store.scores.add_scores([make_score(episode, 0, score)])


def advantages(update: Update) -> list[float | None]:
    return [entry.advantage for entry in update.entries]


@pytest.mark.parametrize("kl", ["k1_reward", "k2_loss", "k3_loss"])
def test_an_action_without_a_token_is_left_out_under_a_kl(train: Train, kl: str) -> None:
    pulled = AlgorithmConfig.model_validate({"kl": kl})
    update = train("empty", pulled, (SAID[0], (), *SAID[2:]))
    assert [entry.left_out for entry in update.entries] == [None, "empty", None, None]
    assert update.metrics["samples"] == 3.0


def test_nothing_but_empty_actions_under_a_kl_is_a_step_without_a_change(train: Train) -> None:
    update = train("silent", AlgorithmConfig(kl="k1_reward"), ((),) * 4)
    assert {entry.left_out for entry in update.entries} == {"empty"}
    assert update.metrics["optimizer_steps"] == 0.0


def test_a_samplers_error_is_no_part_of_the_reward(train: Train) -> None:
    """The policy is the base still: its KL is 0, however wrong the sampler's log-probs are."""
    pulled = AlgorithmConfig(kl="k1_reward", kl_coefficient=1.0)
    assert advantages(train("pulled", pulled, off=0.05)) == advantages(
        train("free", AlgorithmConfig())
    )


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_the_trainer_reads_at_the_temperature_that_was_sampled_at(
    train: Train, temperature: float
) -> None:
    update = train(f"at-{temperature}", AlgorithmConfig(), temperature=temperature)
    assert update.metrics["kl_sampler"] < 1e-6
    assert update.metrics["correction_mean"] == 1.0
