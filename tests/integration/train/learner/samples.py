"""Actions and samples of a made-up agent."""

import random
from collections.abc import Sequence

from mappa_core.core.ids import content_id
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample

RUN = content_id("run", "learner-tests")
BASE = PolicyVersion(
    id=content_id("policy", 0),
    run_id=RUN,
    agent="solver",
    step=0,
    base_model="models/tiny",
    adapter_uri=None,
)


def actions(
    count: int = 12, *, problems: int = 3, seed: int = 0, shares: int = 12
) -> list[ScoredAction]:
    """Actions of a few problems whose prompts share a long beginning."""
    rng = random.Random(seed)
    shared = tuple(rng.randrange(3, 259) for _ in range(shares))
    prompts = [
        (*shared, *(rng.randrange(3, 259) for _ in range(1 + problem)))
        for problem in range(problems)
    ]
    return [
        action(prompts[i % problems], [rng.randrange(3, 259) for _ in range(rng.randint(1, 6))], i)
        for i in range(count)
    ]


def action(
    prompt: Sequence[int], response: Sequence[int], index: int, score: float | None = None
) -> ScoredAction:
    return ScoredAction(
        action_id=content_id("action", index),
        agent="solver",
        episode_id=content_id("episode", index),
        problem_id=content_id("problem", *prompt),
        rollout_index=index,
        turn_index=0,
        policy_step=0,
        prompt_token_ids=tuple(prompt),
        token_ids=tuple(response),
        logprobs=(-5.0,) * len(response),
        truncated=False,
        score=score,
    )


def samples(
    given: Sequence[ScoredAction],
    logprobs: Sequence[tuple[float, ...]],
    advantages: Sequence[float],
) -> list[TrainingSample]:
    return [
        TrainingSample(
            action_id=one.action_id,
            prompt_token_ids=one.prompt_token_ids,
            token_ids=one.token_ids,
            old_logprobs=old,
            advantages=(advantage,) * len(one.token_ids),
            temperature=one.temperature,
        )
        for one, old, advantage in zip(given, logprobs, advantages, strict=True)
    ]
