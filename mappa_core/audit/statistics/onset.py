"""Since when: the iteration at which a bias set in, with the set of iterations it could be.

    gap_i = level + size * [i >= onset] + noise_i,   noise_i ~ N(0, v_i)

The gap of each iteration is estimated on its own, at equal difficulty as far as that is measured.
Where an experiment says the size, N(b, se^2), difficulty that was not measured may make a level,
N(0, t^2). Else the size is free, and the level no more than the error of measured difficulty: of a
bias from the start the two are one. The onset is the step that fits best.

The confidence set keeps every onset whose fit is not worse, in twice the log-likelihood, than by
what 95 % of runs like this one stay below if that onset is the true one. These limits are simulated
with the gaps' variances: that of a large step is near zero, that of a small one near the 7.35 of a
Brownian motion (Siegmund 1988, section 3), and one limit for all keeps too many.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Ints, Mask
from mappa_core.audit.statistics.difficulty import Difficulty, difficulty
from mappa_core.audit.statistics.regression import Estimate

CUT = -2 * math.log(1 - math.sqrt(0.95))
"""Of a Brownian motion: no limit is larger by more than chance."""
LEVEL = 0.95
SIMULATIONS = 1_000
SURENESS_POINTS = 0.1
"""An experiment's size is no surer than this of the records': today is another day."""
HIDDEN_POINTS, ANY_POINTS = 0.5, 5.0
"""Standard deviation of a gap that difficulty makes, where it is measured and where it is not."""
LITTLE_POINTS = 0.2
"""The same where no experiment says the size: the error of what is measured."""
SMALLEST_VARIANCE = 1e-4
"""Problems that all score the same by chance do not make an iteration infinitely sure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The gap between a task type and the others, by iteration; (I,) each."""

    iterations: Ints
    points: Floats
    variances: Floats
    hidden: float = HIDDEN_POINTS
    """How large a gap could be without any bias, in points: t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """When a bias set in."""

    iteration: int
    earliest: int
    """Of the 95 % confidence set."""
    latest: int
    size: float
    """Points from then on."""


def gaps(frame: Frame, code: int, counted: Mask | None = None) -> Gaps:
    """Each iteration's gap between a task type and the others, at equal difficulty and outcome.

    Problems are its units, and their variance is pooled over all iterations and types: that of one
    iteration's two or three problems is too often small by chance, and it then too sure.

    Args:
        frame: Actions of all outcomes, from which difficulty is measured.
        code: The task type.
        counted: (N,) those whose gap it is; None for all.
    """
    played = ~np.isnan(frame.success)
    counted = played if counted is None else played & counted
    split = bool(counted.any()) and np.ptp(frame.success[counted]) == 0
    skills = difficulty(frame.take(played))
    usable = (counted & ~np.isnan(frame.score))[played]
    rows, skills = frame.take(played).take(usable), skills.take(usable)
    cells = [
        (int(iteration), sides)
        for iteration, score in _by_iteration(rows, _at_equal_difficulty(rows, skills, split=split))
        if (sides := _sides(*score, code))
    ]
    variance = _pooled_variance([side for _, sides in cells for side in sides])
    return Gaps(
        iterations=np.array([iteration for iteration, _ in cells], dtype=np.int64),
        points=np.array([float(mine.mean() - others.mean()) for _, (mine, others) in cells]),
        variances=np.array([variance * (1 / len(a) + 1 / len(b)) for _, (a, b) in cells]),
        hidden=HIDDEN_POINTS if skills.measured else ANY_POINTS,
    )


def onset(found: Gaps, known: Estimate | None = None) -> Onset | None:
    """The best onset and its confidence set; None without iterations, or without their spread.

    Args:
        found: The gaps by iteration.
        known: The size that an experiment says, where there is one.
    """
    if not len(found.iterations) or np.isinf(found.variances).any():
        return None
    steps = _Steps.of(found, known)
    gains, levels, sizes = steps.fitted(found.points, np.array(known.value if known else 0.0))
    best = int(np.argmax(gains))
    worse = gains[best] - gains
    kept = [
        int(k)
        for k in np.flatnonzero(worse <= CUT)
        if worse[k] <= steps.limit(int(k), float(levels[k]), float(sizes[k]))
    ]
    return Onset(
        iteration=int(found.iterations[best]),
        earliest=int(found.iterations[min([best, *kept])]),
        latest=int(found.iterations[max([best, *kept])]),
        size=float(sizes[best]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps at every position, fitted to many sets of gaps at once."""

    precision: Floats
    """(I,)"""
    level: float
    """1 / t^2."""
    sureness: float
    """1 / se^2 of the size; 0 where it is free."""

    @classmethod
    def of(cls, found: Gaps, known: Estimate | None) -> "_Steps":
        precision = 1 / found.variances
        if known is None:
            return cls(precision=precision, level=LITTLE_POINTS**-2, sureness=0.0)
        error = max(known.standard_error, SURENESS_POINTS)
        return cls(precision=precision, level=found.hidden**-2, sureness=error**-2)

    def fitted(self, points: Floats, known: Floats) -> tuple[Floats, Floats, Floats]:
        """What each step explains, in twice the log-likelihood, its level and its size; (..., I).

        Args:
            points: (..., I) gaps.
            known: (...) sizes that experiments say.
        """
        after, sums = _onwards(self.precision), _onwards(self.precision * points)
        whole, total = after[0] + self.level, sums[..., :1]
        said = sums + self.sureness * known[..., None]
        left = after + self.sureness - after**2 / whole
        size = (said - total * after / whole) / left
        return total**2 / whole + left * size**2, (total - after * size) / whole, size

    def limit(self, position: int, level: float, size: float) -> float:
        """What 95 % of runs stay below that have this level, and this step there."""
        rng = np.random.default_rng(0)
        count = len(self.precision)
        noise = rng.normal(size=(SIMULATIONS, count)) / np.sqrt(self.precision)
        known = size + rng.normal(size=SIMULATIONS) * (self.sureness**-0.5 if self.sureness else 0)
        points = noise + level + size * (np.arange(count) >= position)
        gains = self.fitted(points, known)[0]
        return float(np.quantile(gains.max(axis=1) - gains[:, position], LEVEL))


def _onwards(values: Floats) -> Floats:
    """Sums of each value and all later ones, along the last axis."""
    return np.flip(np.flip(values, -1).cumsum(axis=-1), -1)


def _at_equal_difficulty(rows: Frame, skills: Difficulty, *, split: bool) -> Floats:
    """(N,) scores less what difficulty and outcome make of them within a type and iteration."""
    if not skills.measured:
        columns = [] if split else [rows.success]
    else:
        columns = [skills.own] if split else [skills.surprise, skills.others]
    if not columns:
        return rows.score
    cell = rows.iteration * len(rows.task_type.names) + rows.task_type.codes
    x = np.column_stack([_within(column, cell) for column in columns])
    slopes = np.linalg.lstsq(x, _within(rows.score, cell))[0]
    return rows.score - np.column_stack(columns) @ slopes


def _within(values: Floats, cell: Ints) -> Floats:
    """Less the mean of their cell."""
    codes = np.unique(cell, return_inverse=True)[1]
    return values - (np.bincount(codes, values) / np.bincount(codes))[codes]


def _by_iteration(rows: Frame, score: Floats) -> Iterator[tuple[int, tuple[Frame, Floats]]]:
    for iteration in np.unique(rows.iteration):
        inside = rows.iteration == iteration
        yield int(iteration), (rows.take(inside), score[inside])


def _sides(rows: Frame, score: Floats, code: int) -> tuple[Floats, Floats] | None:
    """Problems' mean scores of the type and of the others; None where a side has none."""
    member = rows.task_type.codes == code
    mine, others = (_problem_means(rows, score, side) for side in (member, ~member))
    return (mine, others) if len(mine) and len(others) else None


def _problem_means(rows: Frame, score: Floats, side: Mask) -> Floats:
    _, codes = np.unique(rows.problem.codes[side], return_inverse=True)
    return np.bincount(codes, score[side]) / np.bincount(codes)


def _pooled_variance(sides: Sequence[Floats]) -> float:
    """Of problems' means around the mean of their side."""
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    freedom = sum(len(side) - 1 for side in sides)
    return max(squares / freedom, SMALLEST_VARIANCE) if freedom else math.inf
