"""Since when: the iteration at which a bias set in, with the set of iterations it could be.

    gap_i = level + size * [i >= onset] + noise_i,   noise ~ N(0, diag(v) + J' J)

The gap of each iteration is estimated at equal difficulty as far as that is measured. v is what its
own problems make of it. J is what is off alike in all: how hard each stratum's problems are, and
what difficulty is worth in points. Where nearly all work is right, that is most of the noise.
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
from mappa_core.audit.statistics.difficulty import Difficulty, Moves, difficulty
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
    shared: Floats | None = None
    """(J, I) what each further number that was estimated could move the gaps by, in points; None
    where nothing was."""
    hidden: float = HIDDEN_POINTS
    """How large a gap could be without any bias, in points: t."""

    @property
    def covariance(self) -> Floats:
        """(I, I) of the gaps' errors."""
        own = np.diag(self.variances)
        return own if self.shared is None else own + self.shared.T @ self.shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """When a bias set in."""

    iteration: int
    could_be: tuple[int, ...]
    """The 95 % confidence set of iterations, in their order."""
    size: float
    """Points from then on."""

    @property
    def earliest(self) -> int:
        """Of the set."""
        return self.could_be[0]

    @property
    def latest(self) -> int:
        """Of the set."""
        return self.could_be[-1]


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
    held = _Held.of(rows, skills, split=split)
    cells = list(_sides(rows, code))
    scores = rows.score - held.columns @ held.slopes
    means = [[_problem_means(rows, scores, side) for side in sides] for _, sides in cells]
    variance = _pooled_variance([side for sides in means for side in sides])
    moved = [held.moved(*_weights(rows, *sides), skills) for _, sides in cells]
    return Gaps(
        iterations=np.array([iteration for iteration, _ in cells], dtype=np.int64),
        points=np.array([float(mine.mean() - others.mean()) for mine, others in means]),
        variances=np.array([variance * (1 / len(a) + 1 / len(b)) for a, b in means]),
        shared=np.array(moved).T if moved else None,
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
        could_be=tuple(found.iterations[sorted({best, *kept})].tolist()),
        size=float(sizes[best]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps at every position, fitted to many sets of gaps at once."""

    precision: Floats
    """(I, I) the inverse of the gaps' covariance."""
    noise: Floats
    """(S, I) simulated errors of the gaps."""
    moods: Floats
    """(S,) of the size, in standard errors."""
    level: float
    """1 / t^2."""
    sureness: float
    """1 / se^2 of the size; 0 where it is free."""

    @classmethod
    def of(cls, found: Gaps, known: Estimate | None) -> "_Steps":
        covariance, count = found.covariance, len(found.iterations)
        rng = np.random.default_rng(0)
        drawn = rng.normal(size=(SIMULATIONS, count + 1))
        hidden = LITTLE_POINTS if known is None else found.hidden
        error = math.inf if known is None else max(known.standard_error, SURENESS_POINTS)
        return cls(
            precision=np.asarray(np.linalg.inv(covariance), dtype=np.float64),
            noise=drawn[:, :count] @ np.linalg.cholesky(covariance).T,
            moods=drawn[:, count],
            level=hidden**-2,
            sureness=error**-2,
        )

    def fitted(self, points: Floats, known: Floats) -> tuple[Floats, Floats, Floats]:
        """What each step explains, in twice the log-likelihood, its level and its size; (..., I).

        Args:
            points: (..., I) gaps.
            known: (...) sizes that experiments say.
        """
        cross = _onwards(self.precision.sum(axis=0))
        after = np.diagonal(_onwards(_onwards(self.precision).T))
        sums = _onwards(points @ self.precision)
        whole, total = cross[0] + self.level, sums[..., :1]
        said = sums + self.sureness * known[..., None]
        left = after + self.sureness - cross**2 / whole
        size = (said - total * cross / whole) / left
        return total**2 / whole + left * size**2, (total - cross * size) / whole, size

    def limit(self, position: int, level: float, size: float) -> float:
        """What 95 % of runs stay below that have this level, and this step there."""
        step = np.arange(len(self.precision)) >= position
        known = size + self.moods * (self.sureness**-0.5 if self.sureness else 0)
        points = self.noise + level + size * step
        gains = self.fitted(points, known)[0]
        return float(np.quantile(gains.max(axis=1) - gains[:, position], LEVEL))


def _onwards(values: Floats) -> Floats:
    """Sums of each value and all later ones, along the last axis."""
    return np.flip(np.flip(values, -1).cumsum(axis=-1), -1)


@dataclass(frozen=True, kw_only=True)
class _Held:
    """What is held equal within a type and iteration, and what it is worth; of N actions."""

    columns: Floats
    """(N, C)"""
    slopes: Floats
    """(C,) points."""
    root: Floats
    """(C, C) by which errors move the slopes; problems are the clusters."""
    follows: tuple[Moves | None, ...]
    """How each column moves with the skills that are not known for sure."""

    @classmethod
    def of(cls, rows: Frame, skills: Difficulty, *, split: bool) -> "_Held":
        columns, follows = _columns(rows, skills, split=split)
        cell = rows.iteration * len(rows.task_type.names) + rows.task_type.codes
        x = np.column_stack([*(_within(each, cell) for each in columns), np.zeros((len(rows), 0))])
        y = _within(rows.score, cell)
        bread = np.linalg.pinv(x.T @ x)
        slopes = bread @ (x.T @ y)
        problem = np.unique(rows.problem.codes, return_inverse=True)[1]
        pulls = np.zeros((int(problem.max(initial=-1)) + 1, x.shape[1]))
        np.add.at(pulls, problem, x * (y - x @ slopes)[:, None])
        return cls(
            columns=np.column_stack([*columns, np.zeros((len(rows), 0))]),
            slopes=slopes,
            root=np.asarray(np.linalg.qr(pulls @ bread).R, dtype=np.float64),
            follows=follows,
        )

    def moved(self, places: Ints, weights: Floats, skills: Difficulty) -> Floats:
        """(J,) what could move a weighted sum of some actions' scores, in points."""
        part = skills.take(places)
        skilled = np.zeros(len(skills.variances))
        for follow, slope in zip(self.follows, self.slopes.tolist(), strict=True):
            if follow is not None:
                skilled += slope * part.moved(follow[places] * weights)
        sloped = self.root @ (weights @ self.columns[places])
        return np.concatenate([sloped, skilled * np.sqrt(skills.variances)])


def _columns(
    rows: Frame, skills: Difficulty, *, split: bool
) -> tuple[list[Floats], tuple[Moves | None, ...]]:
    """What is held equal: outcome and skill, as far as there are any."""
    if not skills.measured:
        return ([], ()) if split else ([rows.success], (None,))
    if split:
        return [skills.own], (skills.own_follow,)
    return [skills.surprise, skills.others], (skills.surprise_follow, skills.others_follow)


def _within(values: Floats, cell: Ints) -> Floats:
    """Less the mean of their cell."""
    codes = np.unique(cell, return_inverse=True)[1]
    return values - (np.bincount(codes, values) / np.bincount(codes))[codes]


def _sides(rows: Frame, code: int) -> Iterator[tuple[int, tuple[Ints, Ints]]]:
    """Yield each iteration with the places of the type's actions and of the others'."""
    order = np.argsort(rows.iteration, kind="stable")
    iterations, starts = np.unique(rows.iteration[order], return_index=True)
    for iteration, places in zip(iterations.tolist(), np.split(order, starts[1:]), strict=True):
        member = rows.task_type.codes[places] == code
        if member.any() and not member.all():
            yield iteration, (places[member], places[~member])


def _problem_means(rows: Frame, score: Floats, side: Ints) -> Floats:
    _, codes = np.unique(rows.problem.codes[side], return_inverse=True)
    return np.bincount(codes, score[side]) / np.bincount(codes)


def _weights(rows: Frame, mine: Ints, others: Ints) -> tuple[Ints, Floats]:
    """Places and weights of the scores of which the gap between two sides is the sum."""
    parts: list[Floats] = []
    for side, sign in ((mine, 1.0), (others, -1.0)):
        _, codes, counts = np.unique(
            rows.problem.codes[side], return_inverse=True, return_counts=True
        )
        parts.append(sign / (counts[codes] * len(counts)))
    return np.concatenate([mine, others]), np.concatenate(parts)


def _pooled_variance(sides: Sequence[Floats]) -> float:
    """Of problems' means around the mean of their side."""
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    freedom = sum(len(side) - 1 for side in sides)
    return max(squares / freedom, SMALLEST_VARIANCE) if freedom else math.inf
