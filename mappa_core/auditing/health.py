"""Can these scores teach at all? Their spread, their ceiling, and what is missing."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from mappa_core.auditing.effects import Estimate, cluster_sums, contrast, estimable, fit
from mappa_core.auditing.frame import Floats, Frame

LOWEST, HIGHEST = 0.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The distribution of some scores."""

    actions: int
    mean: float
    deviation: float
    at_mode: float
    """Share that got the most frequent score; 1 teaches nothing."""
    mode: float
    at_ceiling: float
    """Share that got a 10."""
    entropy_bits: float
    """Of the distribution over half points; 21 equally frequent ones have 4.39 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What unscored actions could hide: the gap between two groups at worst.

    Manski (1989): with nothing assumed about the missing, each is anything in [0, 10].
    """

    share: float
    share_others: float
    gap: float
    """Of the scores there are, in points."""
    lowest_gap: float
    highest_gap: float

    @property
    def possible_bias(self) -> float:
        """How far the gap could be from what it seems, in points."""
        return max(self.gap - self.lowest_gap, self.highest_gap - self.gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Whether scores rise where success does not: a coach that is being gamed."""

    agent: str
    task_type: str
    estimate: Estimate
    """Change of (score / 10 - success) from the first to the last iteration."""
    actions: int
    problems: int


def health(scores: Floats) -> Health | None:
    """Describe scores; None where there are none."""
    scores = scores[~np.isnan(scores)]
    if not len(scores):
        return None
    values, counts = np.unique(np.round(2 * scores) / 2, return_counts=True)
    return Health(
        actions=len(scores),
        mean=float(scores.mean()),
        deviation=float(scores.std(ddof=1)) if len(scores) > 1 else 0.0,
        at_mode=float(counts.max() / len(scores)),
        mode=float(values[counts.argmax()]),
        at_ceiling=float((scores >= HIGHEST).mean()),
        entropy_bits=float(stats.entropy(counts, base=2)),
    )


def missing(frame: Frame, code: int) -> Missing | None:
    """How much the unscored could change the gap of one task type to the others.

    Args:
        frame: All actions the coach was asked about, unscored ones included.
        code: Of the task type.

    Returns:
        None where either side has no scores.
    """
    member = frame.task_type.codes == code
    mine, others = frame.score[member], frame.score[~member]
    if np.isnan(mine).all() or np.isnan(others).all():
        return None
    (low, high), (other_low, other_high) = _bounds(mine), _bounds(others)
    return Missing(
        share=float(np.isnan(mine).mean()),
        share_others=float(np.isnan(others).mean()),
        gap=float(np.nanmean(mine) - np.nanmean(others)),
        lowest_gap=low - other_high,
        highest_gap=high - other_low,
    )


def divergences(frame: Frame) -> Iterator[Divergence]:
    """For each agent and task type, whether score and success go apart over the iterations."""
    frame = frame.judged()
    for agent in frame.agent.present():
        for task_type in frame.task_type.present():
            rows = frame.take((frame.agent.codes == agent) & (frame.task_type.codes == task_type))
            estimate = _trend(rows)
            if estimate is not None:
                yield Divergence(
                    agent=frame.agent.names[agent],
                    task_type=frame.task_type.names[task_type],
                    estimate=estimate,
                    actions=len(rows),
                    problems=len(rows.problem.present()),
                )


def _trend(rows: Frame) -> Estimate | None:
    if not len(rows) or len(rows.problem.present()) < 2:
        return None
    first, last = int(rows.iteration.min()), int(rows.iteration.max())
    time = (rows.iteration - first) / max(last - first, 1)
    fitted = fit(
        cluster_sums(
            np.column_stack([np.ones(len(rows)), time]),
            rows.score / HIGHEST - rows.success,
            rows.problem.codes,
        )
    )
    weights = np.array([0.0, 1.0])
    return contrast(fitted, weights) if estimable(fitted, weights) else None


def _bounds(scores: Floats) -> tuple[float, float]:
    """The mean if every missing score were the lowest, and the highest."""
    absent = np.isnan(scores)
    return (
        float(np.where(absent, LOWEST, scores).mean()),
        float(np.where(absent, HIGHEST, scores).mean()),
    )
