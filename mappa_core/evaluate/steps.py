"""How far a team has come: the updates after which every agent has a policy."""

from collections import defaultdict
from collections.abc import Iterable

from mappa_core.core.records.episodes import PolicyVersion


def last_step(policies: Iterable[PolicyVersion]) -> int:
    """The last step at which every agent of a run has a policy; 0 where there is none but the base.

    Args:
        policies: All policy versions of the run; an agent that was never updated has its base.
    """
    steps = defaultdict[str, set[int]](set)
    for policy in policies:
        steps[policy.agent].add(policy.step)
    return max(set[int].intersection(*steps.values()), default=0) if steps else 0
