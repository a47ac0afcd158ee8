"""Can these scores teach at all? Their spread, their ceiling, and what is missing."""

from dataclasses import dataclass

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats, Frame

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
    unparsed: float = 0.0
    """Share of all replies, of these and of the missing ones, that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What unscored actions could hide: the gap between two groups at worst.

    Manski (1989): with nothing assumed about the missing, each is anything in [0, 10].
    """

    share: float
    gap: float
    """Of the scores there are, in points."""
    lowest_gap: float
    highest_gap: float

    @property
    def possible_bias(self) -> float:
        """How far the gap could be from what it seems, in points."""
        return max(self.gap - self.lowest_gap, self.highest_gap - self.gap)


def health(frame: Frame) -> Health | None:
    """Describe the scores of some actions; None where there are none."""
    scores = frame.score[~np.isnan(frame.score)]
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
        entropy_bits=float(special.entr(counts / counts.sum()).sum() / np.log(2)),
        unparsed=float(frame.unparsed.mean()),
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
        gap=float(np.nanmean(mine) - np.nanmean(others)),
        lowest_gap=low - other_high,
        highest_gap=high - other_low,
    )


def _bounds(scores: Floats) -> tuple[float, float]:
    """The mean if every missing score were the lowest, and the highest."""
    absent = np.isnan(scores)
    return (
        float(np.where(absent, LOWEST, scores).mean()),
        float(np.where(absent, HIGHEST, scores).mean()),
    )
