"""Decides which of an agent's checkpoints go, and removes their files."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from mappa_core.core.records.updates import Checkpoint
from mappa_core.store.store import Store
from mappa_core.train import checkpoints


def retire_checkpoints(
    store: Store, run_id: UUID, agent: str, keep: int | None, async_level: int
) -> tuple[Path, ...]:
    """Remove the files of an agent's superseded checkpoints; records and registered copies stay.

    `keep` is `learner.keep_checkpoints` (None removes nothing), `async_level` is the rollout's.
    Returns where they were.

    Raises:
        LearnerError: One is there and cannot be removed.
    """
    old = superseded(store, run_id, agent, keep, async_level) if keep else ()
    gone = tuple(Path(checkpoint.directory) for checkpoint in old)
    for directory in gone:
        checkpoints.remove(directory)
    return gone


def superseded(
    store: Store, run_id: UUID, agent: str, keep: int, async_level: int
) -> tuple[Checkpoint, ...]:
    """Find an agent's checkpoints on disk that no run goes on from, and that are not the best.

    The last ones stay, and those that a fork goes on from.
    """
    there = [
        (policy, checkpoint)
        for policy, checkpoint in store.policies.list_checkpoints(run_id)
        if policy.agent == agent and Path(checkpoint.directory).is_dir()
    ]
    best = best_step(store, run_id, agent, [policy.step for policy, _ in there], async_level)
    shared = store.policies.checkpoints_shared_with_forks(run_id)
    # One step off, an older one is being played with, and an engine that dies loads it again.
    return tuple(
        checkpoint
        for policy, checkpoint in there[: -(keep + async_level)]
        if policy.step != best and checkpoint.directory not in shared
    )


def best_steps(store: Store, run_id: UUID, async_level: int) -> Mapping[str, int]:
    """Find each agent's best checkpoint on disk; agents without one are absent."""
    steps: dict[str, list[int]] = defaultdict(list)
    for policy, checkpoint in store.policies.list_checkpoints(run_id):
        if Path(checkpoint.directory).is_dir():
            steps[policy.agent].append(policy.step)
    found = {
        agent: best_step(store, run_id, agent, theirs, async_level)
        for agent, theirs in steps.items()
    }
    return {agent: step for agent, step in found.items() if step is not None}


def best_step(
    store: Store, run_id: UUID, agent: str, steps: Sequence[int], async_level: int
) -> int | None:
    """Find which of an agent's policies sampled the highest mean score; None where none did yet.

    The last ones have sampled nothing that was learnt from.
    """
    lag = 1 + async_level
    sampled = [(store.updates.get_update(run_id, agent, step + lag), step) for step in steps]
    scores = {step: made.metrics["score_mean"] for made, step in sampled if made is not None}
    return max(scores, key=scores.__getitem__, default=None)
