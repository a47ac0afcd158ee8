"""A run's comparisons with other scores: one design, many sets of scores.

What does not change with the scores (difficulty, design, leverages, degrees of freedom) is worked
out once; a further set costs a product of matrices and the judging.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Ints, Mask
from mappa_core.audit.statistics.contrasts import Contrast, contrasts_of
from mappa_core.audit.statistics.design import Regression
from mappa_core.audit.statistics.difficulty import Difficulty
from mappa_core.audit.statistics.effects import sharing, wholes, within_wholes
from mappa_core.audit.statistics.observational import (
    ALARMS,
    Gap,
    Word,
    judge_observed,
    overall_word,
    p_values,
)
from mappa_core.audit.statistics.regression import Estimate, spread_weights
from mappa_core.audit.statistics.sensitivity import measured_through
from mappa_core.audit.statistics.verdicts import ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """The comparisons of one run."""

    main: Sequence[Contrast]
    cells: Sequence[Contrast]

    @classmethod
    def of(cls, frame: Frame) -> "Rescored":
        """Those that an audit of the run makes; none where there is nothing to compare."""
        main, cells = contrasts_of(frame)
        return cls(main=main, cells=cells)

    def alarms(
        self, scores: Floats, margin: float, look: int = 1, unsure: "Unsure | None" = None
    ) -> Iterator[Word]:
        """Yield what a regression accuses the run's coach of, for each set of scores.

        `cannot tell` where it does not, whatever else it would say.

        Args:
            scores: (N, S) of all the run's actions; missing where the run's are.
            margin: Of the verdicts.
            look: How often the run was looked at, this time included.
            unsure: How far the gaps are moved by skills that are not known; None for as they are.
        """
        families = sharing(look)
        found = refitted([*self.main, *self.cells], scores, unsure)
        main, cells = found[: len(self.main)], found[len(self.main) :]
        proven = _any_proven(main, families) | _any_proven(cells, families)
        for place in range(scores.shape[1]):
            if not proven[place]:
                yield "cannot tell"
                continue
            known = wholes((each.contrast, each.gap(place)) for each in main)
            judged = [
                judge_observed(within_wholes(_gaps(family, place), known), margin, families)
                for family in (main, cells)
            ]
            yield overall_word([each.verdict for each in chain(*judged) if each.verdict in ALARMS])


class Unsure:
    """Draws how far mean skills and spreads are off, the same wherever they are held constant."""

    def __init__(self, rng: np.random.Generator, runs: int, repeats: int = 1) -> None:
        self._rng, self._runs, self._repeats = rng, runs, repeats
        self._drawn: dict[int, Floats] = {}

    def errors(self, skills: Difficulty) -> Floats:
        """(unknowns, S) of one run's strata and types."""
        key = id(skills.table)
        if key not in self._drawn:
            drawn = self._rng.normal(size=(len(skills.variances), self._runs))
            scaled = drawn * np.sqrt(skills.variances)[:, None]
            self._drawn[key] = np.tile(scaled, self._repeats)
        return self._drawn[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredGap:
    """One comparison in every set of scores."""

    contrast: Contrast
    start: Gap
    """As the run's own scores have it."""
    values: Floats
    """(S,) the estimates; their errors, and what could move them, beside them."""
    errors: Floats
    measured: Floats
    outcome: Floats

    def gap(self, place: int) -> Gap:
        """The comparison in one set; `replace` would take most of the time of a run's rates."""
        start = self.start
        return Gap(
            estimate=Estimate(
                value=float(self.values[place]),
                standard_error=float(self.errors[place]),
                degrees_of_freedom=start.estimate.degrees_of_freedom,
                p_value=start.estimate.p_value,
            ),
            unknown=start.unknown.where(float(self.measured[place]), float(self.outcome[place])),
            actions=start.actions,
            at_most=start.at_most,
            difficulty_measured=start.difficulty_measured,
        )

    def p_values(self) -> Floats:
        """(S,) of no gap, missing scores at their worst."""
        low, high = self.start.unknown.missing_low, self.start.unknown.missing_high
        return p_values(self.values, self.errors, self.start.estimate, low, high)


def _gaps(family: Sequence[RescoredGap], place: int) -> list[tuple[Contrast, Gap]]:
    return [(each.contrast, each.gap(place)) for each in family]


def _any_proven(family: Sequence[RescoredGap], families: float) -> Mask:
    """(S,) whether any gap of a family differs from none: Holm's first step."""
    smallest = np.min([each.p_values() for each in family], axis=0)
    return smallest * len(family) * families <= ALPHA


def refitted(
    contrasts: Sequence[Contrast], scores: Floats, unsure: Unsure | None = None
) -> list[RescoredGap]:
    """Each comparison worked out again for every set of scores.

    Args:
        contrasts: Of one run, those of one regression side by side.
        scores: (N, S) of all its actions.
        unsure: As in `Rescored.words`.
    """
    found: list[RescoredGap] = []
    for _, several in groupby(contrasts, key=lambda each: id(each.model)):
        group = list(several)
        coefficients, residuals = refit(group[0].model, scores)
        for each in group:
            moved = None if unsure is None else unsure.errors(each.model.work.skills)
            found.append(_Fixed.of(each).rescored(coefficients, residuals, each.gap(), moved))
    return found


def refit(model: Regression, scores: Floats) -> tuple[Floats, Floats]:
    """(k, S) coefficients and (n, S) residuals for S sets of scores."""
    scored, fitted = model.work.scored, model.fitted
    y, x = scores[model.work.places[scored]], model.x[scored]
    coefficients = np.zeros((len(model.columns), y.shape[1]))
    coefficients[fitted.used] = fitted.bread @ (x[:, fitted.used].T @ y)
    return coefficients, y - x @ coefficients


def clusters(model: Regression) -> tuple[Ints, Ints]:
    """(n,) the scored rows' problems as codes from 0, and where each begins when sorted."""
    codes = model.work.frame.problem.codes[model.work.scored]
    _, problem, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return problem, np.concatenate([[0], counts.cumsum()[:-1]])


@dataclass(frozen=True, kw_only=True)
class _Fixed:
    """A contrast of a fixed design."""

    contrast: Contrast
    spread: Floats
    """(n,) by problem, their products with the residuals have the gap's CR2 variance."""
    through: Floats
    """(k,) of the coefficients: what measured difficulty moves the gap by."""
    moves: Floats
    """(unknowns, k) of the coefficients: how the gap moves with each mean skill and spread."""
    known: Floats
    """(unknowns,) their variances."""

    @classmethod
    def of(cls, contrast: Contrast) -> "_Fixed":
        model, scored = contrast.model, contrast.model.work.scored
        used, (problem, _) = model.fitted.used, clusters(model)
        rows = model.row_weights(contrast.weights, scored)
        skills = model.work.skills.take(scored)
        moves = np.zeros((len(skills.variances), len(model.columns)))
        for place, column in enumerate(model.columns):
            if column.follows is not None:
                moves[:, place] = skills.moved(column.follows[scored] * rows)
        directions = spread_weights(model.fitted, contrast.weights)
        return cls(
            contrast=contrast,
            spread=(model.x[scored][:, used] * directions[problem]).sum(axis=1),
            through=measured_through(model, contrast.weights),
            moves=moves,
            known=skills.variances,
        )

    def rescored(
        self, coefficients: Floats, residuals: Floats, start: Gap, moved: Floats | None
    ) -> RescoredGap:
        """Work the comparison out for all sets of scores, from (k, S), (n, S) and (unknowns, S)."""
        problem, starts = clusters(self.contrast.model)
        order = np.argsort(problem, kind="stable")
        products = np.add.reduceat((self.spread[:, None] * residuals)[order], starts)
        follows = self.moves @ coefficients
        variance = (products**2).sum(axis=0) + self.known @ follows**2
        values = self.contrast.weights @ coefficients
        values = values if moved is None else values + (follows * moved).sum(axis=0)
        measured = np.abs(self.through @ coefficients)
        outcome = np.abs(self.contrast.outcome @ coefficients)
        errors = np.sqrt(variance)
        if not np.isfinite(start.estimate.standard_error):
            errors = np.full_like(errors, np.inf)
        return RescoredGap(
            contrast=self.contrast,
            start=start,
            values=values,
            errors=errors,
            measured=measured,
            outcome=outcome,
        )
