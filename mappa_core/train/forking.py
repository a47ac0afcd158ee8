"""Which stored weights are whole, and a run that goes on from those of another one.

    run A   step 0 ── 1 ── 2 ── 3 ── 4 x        4 is damaged; A and all its rows stay as they are
                                └── run B       0 to 3 by reference, then iterations 4, 5, ... anew

Ids are made of the run, so what B plays and learns never meets what A had made of the same
iterations; seeds are not, so B does what A would have done: to the bit with rollout.async_level=0.
With 1, B plays its first iteration with the weights it starts from, which A had not yet (3 for 4,
where A had 2).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from uuid import UUID

from mappa_core.app.config import TrainConfig
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError, LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.store.protocols import Store

Check = Callable[[PolicyVersion], None]
"""Reads a policy's files against their hashes; raises `LearnerError`."""
_SAME = {"team": True, "model": True, "learner": {"weights": True, "lora": True}}
"""Keys that decide which weights fit."""


def newest_whole_step(store: Store, run_id: UUID, check: Check) -> int:
    """The last step whose files are whole for every agent; 0 is the base model, which has none."""
    steps = _by_step(store, run_id)
    return next((i for i in reversed(range(len(steps))) if _are_whole(steps[i], check)), 0)


def check_resumable(store: Store, run_id: UUID, check: Check) -> None:
    """Look at the newest weights of every agent before a run goes on from them.

    Raises:
        LearnerError: A file is missing or damaged; the message says how to go on without it.
    """
    newest = {policy.agent: policy for policy in store.policies(run_id)}
    for policy in newest.values():
        check(policy)


def check_fork(source: Run, config: TrainConfig, store: Store, check: Check) -> None:
    """Whether a run of `config` can go on from `source`.

    Raises:
        ConfigError: Its weights would not fit, or it has not come as far as `start.step`.
        LearnerError: Its files are missing or damaged.
    """
    check_same_weights(source, config, "a fork")
    steps = _by_step(store, source.id)
    if config.start.step >= len(steps):
        raise ConfigError(
            f"run {source.name} has weights after 0 to {len(steps) - 1} updates, not "
            f"{config.start.step}: set start.step (--step) to one of them"
        )
    for policy in steps[config.start.step]:
        check(policy)


def check_trains(run: Run) -> None:
    """Whether a run makes weights.

    Raises:
        ConfigError: It is an evaluation of another run.
    """
    if run.measures is not None:
        raise ConfigError(
            f"run {run.name} only measures run {run.measures}: name that one, or go on measuring "
            "with `mappa evaluate`"
        )


def check_same_weights(run: Run, config: TrainConfig, what: str) -> None:
    """Whether `what` is to be done with the weights that `run` trains.

    Raises:
        ConfigError: It trains none, or they would not fit.
    """
    check_trains(run)
    theirs = TrainConfig.model_validate(run.config)
    if config.model_dump(include=_SAME) != theirs.model_dump(include=_SAME):
        raise ConfigError(
            f"run {run.name} trains other weights: {what} keeps team, model, learner.weights "
            "and learner.lora"
        )


def adopt(source: Run, run_id: UUID, store: Store, upto: int) -> None:
    """Give a run the policies of another up to a step; their files stay where they are."""
    for policy in store.policies(source.id):
        if policy.step <= upto:
            identity = ids.policy_version_id(run_id, policy.agent, policy.step)
            store.add_policy_version(replace(policy, id=identity, run_id=run_id))


def _by_step(store: Store, run_id: UUID) -> list[list[PolicyVersion]]:
    """The policies after 0, 1, 2, ... updates, as far as every agent has come."""
    policies = store.policies(run_id)
    agents = {policy.agent for policy in policies}
    steps = [list(group) for _, group in groupby(policies, key=lambda policy: policy.step)]
    return [group for group in steps if len(group) == len(agents)]


def _are_whole(policies: Sequence[PolicyVersion], check: Check) -> bool:
    try:
        for policy in policies:
            check(policy)
    except LearnerError:
        return False
    return True
