"""What a rubric's own arithmetic pays for doing nothing, by task type.

Where a rubric caps scores by a metric, a policy that predicts a constant has a known value of every
metric on standardised labels (two classes alike often; a normal target), so the most it can get
follows without asking a model. Policies that earn the same must be capped the same.

    no submission    no value: the cap below the last step
    constant         the majority class, or the mean
    random           another draw from the labels' own distribution
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mappa_core.coach.rubrics import Rubric, RubricSet, TaskType

CONSTANT, RANDOM, NOTHING = "constant", "random", "no submission"
VALUES: Mapping[str, tuple[float, float]] = {
    "accuracy": (0.5, 0.5),
    "balanced_accuracy": (0.5, 0.5),
    "f1": (2 / 3, 0.5),
    "roc_auc": (0.5, 0.5),
    "log_loss": (math.log(2), math.inf),
    "r2": (0.0, -1.0),
    "rmse_over_sd": (1.0, math.sqrt(2)),
    "mae_over_mad": (1.0, math.sqrt(2)),
    "spearman": (0.0, 0.0),
    "share_correct": (0.5, 0.5),
    "jaccard": (0.0, 0.0),
}
"""Of the constant and of the random policy. Random guesses of a class are certain and half of them
wrong, so their log loss has no bound; two independent normal values differ by root 2 more; a
text of another row is taken to share no word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullCap:
    """The most a policy that does nothing can get from one agent's rubric."""

    agent: str
    policy: str
    points: Mapping[str, float]
    """By task type."""

    @property
    def spread(self) -> float:
        """Largest minus smallest cap."""
        return max(self.points.values()) - min(self.points.values())


def null_caps(rubrics: RubricSet) -> tuple[NullCap, ...]:
    """What the null policies can get, for every agent whose rubric has metrics."""
    return tuple(cap for agent, rubric in rubrics.rubrics.items() for cap in _of(agent, rubric))


def _of(agent: str, rubric: Rubric) -> Iterator[NullCap]:
    kinds = {name: kind for name, kind in rubric.task_types.items() if kind.metric in VALUES}
    if not kinds:
        return
    for policy in (NOTHING, CONSTANT, RANDOM):
        points = {name: cap(kind, value(kind, policy)) for name, kind in kinds.items()}
        yield NullCap(agent=agent, policy=policy, points=points)


def value(kind: TaskType, policy: str) -> float | None:
    """The metric's value of a null policy; None where it hands in nothing."""
    if policy == NOTHING or kind.metric is None or kind.metric not in VALUES:
        return None
    return VALUES[kind.metric][policy == RANDOM]


def cap(kind: TaskType, measured: float | None) -> float:
    """The highest score that a measured value allows."""
    lowest = kind.cap if kind.otherwise is None else kind.otherwise
    if measured is None:
        return lowest
    for step in kind.scale:
        reached = measured >= step.bound if kind.better == "higher" else measured <= step.bound
        if reached:
            return step.cap
    return lowest
