"""Finds which stored weights are whole, and lets a run go on from those of another one.

    run A   step 0 ── 1 ── 2 ── 3 ── 4 x        4 is damaged; A and all its rows stay as they are
                                └── run B       0 to 3 by reference, then iterations 4, 5, ... anew

Ids are made of the run, so what B plays and learns never meets what A had made of the same
iterations; seeds are not, so B does what A would have done: to the bit with rollout.async_level=0.
With 1, B plays its first iteration with the weights it starts from, which A had not yet (3 for 4,
where A had 2).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from uuid import UUID

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError, LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.store.store import Store

Check = Callable[[PolicyVersion], None]
"""Reads a policy's files against their hashes; raises `LearnerError`."""


def newest_whole_step(store: Store, run_id: UUID, check: Check) -> int:
    """Find the last step whose files are whole for every agent; 0 is the base, which has none."""
    for step, policies in reversed([*enumerate(_by_step(store, run_id))]):
        with suppress(LearnerError):
            for policy in policies:
                check(policy)
            return step
    return 0


def check_resumable(store: Store, run_id: UUID, check: Check) -> None:
    """Check the newest weights of every agent before a run goes on from them.

    Raises:
        LearnerError: A file is missing or damaged; the message says how to go on without it.
    """
    newest = {policy.agent: policy for policy in store.policies.list_policy_versions(run_id)}
    for policy in newest.values():
        check(policy)


def check_fork(source: Run, step: int, store: Store, check: Check) -> None:
    """Refuse to go on from `source` where it has no whole weights after `step` updates.

    Raises:
        ConfigError: It has not come so far.
        LearnerError: Its files are missing or damaged.
    """
    steps = _by_step(store, source.id)
    if step >= len(steps):
        raise ConfigError(
            f"run {source.name} has weights after 0 to {len(steps) - 1} updates, not {step}: set "
            "start.step (--step) to one of them"
        )
    for policy in steps[step]:
        check(policy)


def adopt(source: Run, run_id: UUID, store: Store, upto: int) -> None:
    """Give a run the policies of another up to a step; their files stay where they are."""
    for policy in store.policies.list_policy_versions(source.id):
        if policy.step <= upto:
            identity = ids.policy_version_id(run_id, policy.agent, policy.step)
            store.policies.add_policy_version(replace(policy, id=identity, run_id=run_id))


def _by_step(store: Store, run_id: UUID) -> list[list[PolicyVersion]]:
    """List the policies after 0, 1, 2, ... updates, as far as every agent has come."""
    policies = store.policies.list_policy_versions(run_id)
    agents = {policy.agent for policy in policies}
    steps = [list(group) for _, group in groupby(policies, key=lambda policy: policy.step)]
    return [group for group in steps if len(group) == len(agents)]
