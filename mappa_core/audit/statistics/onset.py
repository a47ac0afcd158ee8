"""Since when: the iteration at which a bias set in, with the set of iterations it could be.

    gap_i = size * [i >= onset] + noise_i,   noise_i ~ N(0, v_i)

The gap of each iteration is estimated on its own; the onset is the step that fits best. The
confidence set keeps every onset whose fit is not worse by more than 7.35 in twice the
log-likelihood: -2 log(1 - sqrt(0.95)), the level at which the larger of the two sides' excursions,
each exponential, stays below (Siegmund 1988, section 3).
"""

import math
from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Ints

CUT = -2 * math.log(1 - math.sqrt(0.95))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The gap between a task type and the others, by iteration; (I,) each."""

    iterations: Ints
    points: Floats
    variances: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """When a bias set in."""

    iteration: int
    earliest: int
    """Of the 95 % confidence set."""
    latest: int
    size: float
    """Points from then on."""


def gaps(frame: Frame, code: int) -> Gaps:
    """Each iteration's gap between a task type and the others, at equal outcome.

    The gap is taken within right and within wrong episodes and averaged with the weights that
    make it most precise; problems are the units of its variance. Iterations in which either side
    has fewer than two problems in every outcome are left out.
    """
    frame = frame.judged()
    rows: list[tuple[int, float, float]] = []
    for iteration in np.unique(frame.iteration):
        found = _pooled(frame.take(frame.iteration == iteration), code)
        if found is not None:
            rows.append((int(iteration), *found))
    return Gaps(
        iterations=np.array([row[0] for row in rows], dtype=np.int64),
        points=np.array([row[1] for row in rows]),
        variances=np.array([row[2] for row in rows]),
    )


def onset(found: Gaps) -> Onset | None:
    """The best onset and its confidence set; None where there is no iteration to choose from."""
    if not len(found.iterations):
        return None
    losses, sizes = zip(
        *(_step(found, position) for position in range(len(found.iterations))), strict=True
    )
    best = int(np.argmin(losses))
    kept = np.flatnonzero(np.array(losses) <= losses[best] + CUT)
    return Onset(
        iteration=int(found.iterations[best]),
        earliest=int(found.iterations[kept[0]]),
        latest=int(found.iterations[kept[-1]]),
        size=sizes[best],
    )


def _step(found: Gaps, position: int) -> tuple[float, float]:
    """Twice the negative log-likelihood, and the size, of a step at one position."""
    precision = 1 / found.variances
    after, points = precision[position:], found.points[position:]
    size = float((after * points).sum() / after.sum())
    before_loss = (precision[:position] * found.points[:position] ** 2).sum()
    return float(before_loss + (after * (points - size) ** 2).sum()), size


def _pooled(rows: Frame, code: int) -> tuple[float, float] | None:
    """The gap and its variance at equal outcome."""
    strata = (rows.take(rows.success == outcome) for outcome in (0.0, 1.0))
    cells = [cell for stratum in strata if (cell := _cell(stratum, code)) is not None]
    if not cells:
        return None
    precision = sum(1 / variance for _, variance in cells)
    return sum(gap / variance for gap, variance in cells) / precision, 1 / precision


def _cell(rows: Frame, code: int) -> tuple[float, float] | None:
    member = rows.task_type.codes == code
    mine, others = _side(rows.take(member)), _side(rows.take(~member))
    if mine is None or others is None:
        return None
    return mine[0] - others[0], mine[1] + others[1]


def _side(rows: Frame) -> tuple[float, float] | None:
    """Mean and variance of the mean over problems' means."""
    counts = np.bincount(rows.problem.codes)
    present = counts > 0
    if present.sum() < 2:
        return None
    sums = np.bincount(rows.problem.codes, weights=rows.score)
    means = sums[present] / counts[present]
    variance = float(means.var(ddof=1)) / len(means)
    return float(means.mean()), max(variance, SMALLEST_VARIANCE)


SMALLEST_VARIANCE = 1e-4
"""Problems that all score the same by chance do not make an iteration infinitely sure."""
