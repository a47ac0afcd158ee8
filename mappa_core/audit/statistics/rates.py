"""How often an audit of this very run would be wrong: the run scored again by coaches we know.

The run's own problems, agents, outcomes, lengths and missing scores stay. What is drawn is latent
quality and the coach:

    skill      z_g of each problem, given how its episodes came out (`difficulty`), and around a
               mean of its type that is no better known than it is
    quality    a + b z_g + d (outcome - Phi(z_g)) + what agent, length and tools go with,
               with a, b and d as the run has them and nothing for the task type
    score      quality + the problem's and the episode's own + noise, mapped to the run's own
               distribution of scores, so that heaps and ceiling stay; a planted bias comes before

The skill drives outcome and score alike, so a coach that is honest meets every difference in
difficulty that the run has. What no outcome shows is in no simulation: see `sensitivity`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Ints
from mappa_core.audit.statistics.contrasts import Contrast, cell_contrasts, main_contrasts
from mappa_core.audit.statistics.design import Regression
from mappa_core.audit.statistics.effects import sharing, wholes, within_wholes
from mappa_core.audit.statistics.observational import (
    ALARMS,
    Gap,
    Word,
    judge_observed,
    overall_word,
)
from mappa_core.audit.statistics.regression import spread_weights
from mappa_core.audit.statistics.selftest import Rate, counted_rate
from mappa_core.audit.statistics.sensitivity import measured_through
from mappa_core.audit.statistics.simulated_coach import SimulatedCoach, refit

MOST_ROWS = 12_000
"""Of a run that is simulated; of a larger one whole problems are drawn, so its power is better."""
CALLED_BIASED = "an honest coach is called biased"
SUSPECTED = "an honest coach is suspected"


def found_name(margin: float) -> str:
    """What the rate at which a bias of the margin is found goes by."""
    return f"a bias of {margin:g} is found"


def rates_of(
    frame: Frame, runs: int, margin: float, seed: int = 0, *, look: int = 1
) -> tuple[Rate, ...]:
    """How often an honest coach would be suspected or called biased, and a biased one found.

    Args:
        frame: The run's actions.
        runs: Simulated scorings behind each rate.
        margin: Of the verdicts; the planted bias is as large.
        seed: Of the simulation.
        look: How often the run was looked at, this time included.

    Returns:
        Nothing where there is nothing to compare.
    """
    rng = np.random.default_rng(seed)
    frame = _smaller(frame, rng)
    main, cells = list(main_contrasts(frame)), list(cell_contrasts(frame))
    whole = next((each for each in main if each.stratum == "all"), None)
    if whole is None:
        return ()
    coach = SimulatedCoach.of(whole.model, len(frame)).matched(whole.model, rng)
    favoured = frame.task_type.codes == frame.task_type.names.index(whole.subject)
    latent = coach.qualities(rng, runs)
    scores = np.concatenate(
        [coach.heaped(latent, latent), coach.kinder(latent, favoured[coach.places], margin)], axis=1
    )
    said = list(_said(main, cells, scores, margin, sharing(look)))
    biased = sum(word == "biased" for word in said[:runs])
    suspected = sum(word in ALARMS for word in said[:runs])
    found = sum(word in ALARMS for word in said[runs:])
    return (
        counted_rate(found_name(margin), found, runs, "power"),
        counted_rate(CALLED_BIASED, biased, runs, "level"),
        counted_rate(SUSPECTED, suspected, runs, "level"),
    )


@dataclass(frozen=True, kw_only=True)
class _Fixed:
    """A contrast of a fixed design, ready for many sets of scores."""

    contrast: Contrast
    weights: Floats
    """(n,) of the rows: the gap is their sum of products with the scores."""
    spread: Floats
    """(n,) by problem, their products with the residuals have the gap's CR2 variance."""
    freedom: float
    through: Floats
    """(k,) of the coefficients: what measured difficulty moves the gap by."""
    moves: Floats
    """(S, k) of the coefficients: how the gap moves with each stratum's mean skill."""
    known: Floats
    """(S,) variances of those mean skills."""

    @classmethod
    def of(cls, contrast: Contrast) -> "_Fixed":
        model, scored = contrast.model, contrast.model.work.scored
        used, (problem, _) = model.fitted.used, _clusters(model)
        x = model.x[scored][:, used]
        rows = model.row_weights(contrast.weights, scored)
        codes, known = model.work.skills.stratum[scored], model.work.skills.mean_variance
        moves = np.zeros((len(known), len(model.columns)))
        for place, column in enumerate(model.columns):
            if column.follows is not None:
                weights = rows * column.follows[scored]
                moves[:, place] = np.bincount(codes, weights=weights, minlength=len(known))
        directions = spread_weights(model.fitted, contrast.weights)
        return cls(
            contrast=contrast,
            weights=rows,
            spread=(x * directions[problem]).sum(axis=1),
            freedom=model.estimate(contrast.weights).degrees_of_freedom,
            through=measured_through(model, contrast.weights),
            moves=moves,
            known=known,
        )

    def gaps(self, coefficients: Floats, residuals: Floats, start: Gap) -> Iterator[Gap]:
        """Yield the comparison for every set of scores, from (k, S) and (n, S)."""
        model = self.contrast.model
        problem, starts = _clusters(model)
        order = np.argsort(problem, kind="stable")
        products = np.add.reduceat((self.spread[:, None] * residuals)[order], starts)
        variance = (products**2).sum(axis=0)
        variance += self.known @ (self.moves @ coefficients) ** 2
        values = self.contrast.weights @ coefficients
        measured = np.abs(self.through @ coefficients)
        outcome = np.abs(self.contrast.outcome @ coefficients)
        finite = np.isfinite(start.estimate.standard_error)
        for value, square, moved, right in zip(values, variance, measured, outcome, strict=True):
            error = float(np.sqrt(square)) if finite else float("inf")
            estimate = replace(start.estimate, value=float(value), standard_error=error)
            unknown = replace(start.unknown, measured=float(moved), outcome=float(right))
            yield replace(start, estimate=estimate, unknown=unknown)


def _said(
    main: Sequence[Contrast],
    cells: Sequence[Contrast],
    scores: Floats,
    margin: float,
    families: float,
) -> Iterator[Word]:
    """Yield the run's word for each of S sets of scores; (N, S)."""
    again = zip(*refitted([*main, *cells], scores), strict=True)
    for gaps in again:
        found = list(zip([*main, *cells], gaps, strict=True))
        known = wholes(found[: len(main)])
        judged = [
            *judge_observed(within_wholes(found[: len(main)], known), margin, families),
            *judge_observed(within_wholes(found[len(main) :], known), margin, families),
        ]
        yield overall_word([each.verdict for each in judged])


def refitted(contrasts: Sequence[Contrast], scores: Floats) -> list[list[Gap]]:
    """Each comparison worked out again for every set of scores.

    Args:
        contrasts: Of one run, those of one regression side by side.
        scores: (N, S) of all its actions.
    """
    found: list[list[Gap]] = []
    for _, several in groupby(contrasts, key=lambda each: id(each.model)):
        group = list(several)
        coefficients, residuals = refit(group[0].model, scores)
        found += [list(_Fixed.of(each).gaps(coefficients, residuals, each.gap())) for each in group]
    return found


def _clusters(model: Regression) -> tuple[Ints, Ints]:
    """(n,) the scored rows' problems as codes from 0, and where each begins when sorted."""
    codes = model.work.frame.problem.codes[model.work.scored]
    _, problem, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return problem, np.concatenate([[0], counts.cumsum()[:-1]])


def _smaller(frame: Frame, rng: np.random.Generator) -> Frame:
    """At most some `MOST_ROWS` actions: as many whole problems, in a random order."""
    if len(frame) <= MOST_ROWS:
        return frame
    order = rng.permutation(len(frame.problem.names))
    sizes = np.bincount(frame.problem.codes, minlength=len(order))[order]
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order[: int(np.searchsorted(sizes.cumsum(), MOST_ROWS))]] = True
    return frame.take(chosen[frame.problem.codes])
