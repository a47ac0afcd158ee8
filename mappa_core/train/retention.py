"""Decides which of an agent's checkpoints go, and removes their files."""

from pathlib import Path
from uuid import UUID

from mappa_core.core.records.updates import Checkpoint
from mappa_core.store.store import Store
from mappa_core.train import checkpoints


def retire_checkpoints(
    store: Store, run_id: UUID, agent: str, keep: int | None, async_level: int
) -> None:
    """Remove the files of an agent's superseded checkpoints; records and registered copies stay.

    `keep` is `learner.keep_checkpoints` (None removes nothing), `async_level` is the rollout's.

    Raises:
        LearnerError: One is there and cannot be removed.
    """
    for checkpoint in superseded(store, run_id, agent, keep, async_level) if keep else ():
        checkpoints.remove(Path(checkpoint.directory))


def superseded(
    store: Store, run_id: UUID, agent: str, keep: int, async_level: int
) -> tuple[Checkpoint, ...]:
    """Find an agent's checkpoints on disk that no run goes on from, and that are not the best.

    The last ones stay, and those that a fork goes on from. The best is the one whose policy
    sampled the highest mean score; the last ones have sampled nothing that was learnt from yet.
    """
    there = [
        (policy, checkpoint)
        for policy, checkpoint in store.policies.list_checkpoints(run_id)
        if policy.agent == agent and Path(checkpoint.directory).is_dir()
    ]
    lag = 1 + async_level
    sampled = [
        (store.updates.get_update(run_id, agent, policy.step + lag), policy.step)
        for policy, _ in there
    ]
    scores = {step: made.metrics["score_mean"] for made, step in sampled if made is not None}
    best = max(scores, key=scores.__getitem__, default=None)
    shared = store.policies.checkpoints_shared_with_forks(run_id)
    # One step off, an older one is being played with, and an engine that dies loads it again.
    return tuple(
        checkpoint
        for policy, checkpoint in there[: -(keep + async_level)]
        if policy.step != best and checkpoint.directory not in shared
    )
