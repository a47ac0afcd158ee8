"""Since when: the iteration at which a bias set in, with the set of iterations it could be.

    gap_i = size * [i >= onset] + noise_i,   noise_i ~ N(0, v_i)

The gap of each iteration is estimated on its own; the onset is the step that fits best. The
confidence set keeps every onset whose fit is not worse by more than 7.35 in twice the
log-likelihood: -2 log(1 - sqrt(0.95)), the level at which the larger of the two sides' excursions,
each exponential, stays below (Siegmund 1988, section 3).
"""

import math
from collections.abc import Sequence
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
    make it most precise. Problems are its units, and their variance is pooled over all iterations,
    types and outcomes: that of one cell's two or three problems is too often small by chance, and
    its iteration then too sure.
    """
    frame = frame.judged()
    cells = [
        (int(iteration), sides)
        for iteration in np.unique(frame.iteration)
        for outcome in (0.0, 1.0)
        if (
            sides := _sides(
                frame.take((frame.iteration == iteration) & (frame.success == outcome)), code
            )
        )
    ]
    variance = _pooled_variance([side for _, sides in cells for side in sides])
    found: dict[int, list[tuple[float, float]]] = {}
    for iteration, (mine, others) in cells:
        spread = variance * (1 / len(mine) + 1 / len(others))
        found.setdefault(iteration, []).append((float(mine.mean() - others.mean()), spread))
    rows = [(iteration, *_averaged(parts)) for iteration, parts in found.items()]
    return Gaps(
        iterations=np.array([row[0] for row in rows], dtype=np.int64),
        points=np.array([row[1] for row in rows]),
        variances=np.array([row[2] for row in rows]),
    )


def onset(found: Gaps) -> Onset | None:
    """The best onset and its confidence set; None without iterations, or without their spread."""
    if not len(found.iterations) or np.isinf(found.variances).any():
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


def _sides(rows: Frame, code: int) -> tuple[Floats, Floats] | None:
    """Problems' mean scores of the type and of the others; None where a side has none."""
    member = rows.task_type.codes == code
    mine, others = _problem_means(rows.take(member)), _problem_means(rows.take(~member))
    return (mine, others) if len(mine) and len(others) else None


def _problem_means(rows: Frame) -> Floats:
    counts = np.bincount(rows.problem.codes)
    present = counts > 0
    return np.bincount(rows.problem.codes, weights=rows.score)[present] / counts[present]


def _pooled_variance(sides: Sequence[Floats]) -> float:
    """Of problems' means around the mean of their side."""
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    freedom = sum(len(side) - 1 for side in sides)
    return max(squares / freedom, SMALLEST_VARIANCE) if freedom else math.inf


def _averaged(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of some gaps with its variance, each weighted by its precision."""
    if math.isinf(parts[0][1]):
        return float(np.mean([gap for gap, _ in parts])), math.inf
    precision = sum(1 / variance for _, variance in parts)
    return sum(gap / variance for gap, variance in parts) / precision, 1 / precision


SMALLEST_VARIANCE = 1e-4
"""Problems that all score the same by chance do not make an iteration infinitely sure."""
