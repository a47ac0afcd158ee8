"""Taking the bias off before it teaches: shrunk, capped, and off where it is not proven.

    points = (1 - (se / estimate)^2) * estimate, at most 2 either way, 0 unless it is `biased`

The factor is the positive-part shrinkage of a normal mean (James & Stein 1961): a well-measured
bias is taken off whole, a barely significant one by three quarters.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.records import Correction, CorrectionTerm
from mappa_core.audit.statistics.effects import Effect
from mappa_core.audit.statistics.health import HIGHEST, LOWEST
from mappa_core.audit.statistics.paired import PairedEffect
from mappa_core.core import ids

CAP_POINTS = 2.0
"""More than this is not a bias to be corrected but a coach to be replaced."""
DIFFERENT_Z = 1.96
"""Standard errors by which the outcomes' biases must differ to be corrected one by one."""


def correction_terms(effects: Sequence[Effect]) -> tuple[CorrectionTerm, ...]:
    """What an audit's task-type effects support taking off each type's scores.

    Where a type's bias differs between right and wrong episodes, each is corrected by its own;
    elsewhere both by what was found over all.
    """
    pairs = dict.fromkeys((effect.subject, effect.against) for effect in effects)
    found = {
        pair: tuple(_terms([e for e in effects if (e.subject, e.against) == pair]))
        for pair in pairs
    }
    if len(found) < 2:
        return tuple(term for terms in found.values() for term in terms)
    return tuple(_from_the_mean(found))


def experiment_terms(effects: Sequence[PairedEffect]) -> tuple[CorrectionTerm, ...]:
    """What an experiment supports taking off each type's scores: the worth of the type's name.

    Over right and wrong work alike, for the outcome must not reach a coach's score through it.
    """
    found = {
        effect.types: (
            CorrectionTerm(
                task_type=effect.types[0],
                stratum="all",
                estimate=effect.estimate.value,
                points=_proven(effect),
                verdict=effect.verdict,
            ),
        )
        for effect in effects
        if effect.types is not None and effect.stratum == "all"
    }
    if len(found) < 2:
        return tuple(term for terms in found.values() for term in terms)
    return tuple(term for term in _from_the_mean(found) if term.stratum == "all")


def _proven(effect: PairedEffect) -> float:
    if effect.verdict != "biased":
        return 0.0
    return shrunk(effect.estimate.value, effect.estimate.standard_error)


def _from_the_mean(
    found: Mapping[tuple[str, str], Sequence[CorrectionTerm]],
) -> Iterator[CorrectionTerm]:
    """Yield what makes three types or more alike: each one's distance from the mean of all."""
    kinds = dict.fromkeys(name for pair in found for name in pair)
    for kind in kinds:
        for stratum in ("all", "right", "wrong"):
            signed = [
                (1 if kind == pair[0] else -1, term)
                for pair, terms in found.items()
                for term in terms
                if kind in pair and term.stratum == stratum
            ]
            points = sum(sign * term.points for sign, term in signed) / len(kinds)
            yield CorrectionTerm(
                task_type=kind,
                stratum=stratum,
                estimate=sum(sign * term.estimate for sign, term in signed) / len(kinds),
                points=points,
                verdict="biased" if points else "cannot tell",
            )


def correction(
    terms: tuple[CorrectionTerm, ...],
    *,
    run_id: UUID,
    iteration: int,
    coach: str,
    rubric_sha256: str,
) -> Correction:
    """A correction of these terms.

    Args:
        terms: Of `experiment_terms`, or of `correction_terms`.
        run_id: The run they were estimated on.
        iteration: The last iteration they were estimated on.
        coach: Whose scores they are.
        rubric_sha256: Of the rubric it used.
    """
    content = tuple((term.task_type, term.stratum, f"{term.points:.6f}") for term in terms)
    return Correction(
        id=ids.content_id("correction", run_id, iteration, coach, rubric_sha256, content),
        run_id=run_id,
        iteration=iteration,
        coach=coach,
        rubric_sha256=rubric_sha256,
        terms=terms,
    )


def points_off(terms: Sequence[CorrectionTerm], frame: Frame) -> Floats:
    """What is subtracted from the score of each action; (N,) points.

    Where an episode has no outcome, only what was found over all episodes counts.
    """
    points = np.zeros(len(frame))
    for term in terms:
        if term.points and term.task_type in frame.task_type.names:
            member = frame.task_type.codes == frame.task_type.names.index(term.task_type)
            if term.stratum != "all":
                member = member & (frame.success == (term.stratum == "right"))
            points[member] += term.points
    return points


def points_off_sql(terms: Sequence[CorrectionTerm]) -> str:
    """What `points_off` gives, as an expression on the columns of `audit.action_scores`."""
    parts = [
        f"{term.points!r} * (task_type = {sql.quoted(term.task_type)}{_WHEN[term.stratum]})::int"
        for term in terms
        if term.points
    ]
    return f"({' + '.join(parts) or '0'})"


_WHEN = {
    "all": "",
    "right": " AND success IS NOT DISTINCT FROM true",
    "wrong": " AND success IS NOT DISTINCT FROM false",
}


def corrected(correction: Correction, frame: Frame) -> Floats:
    """The scores with the correction taken off, within [0, 10]; (N,), NaN stays NaN."""
    return (frame.score - points_off(correction.terms, frame)).clip(LOWEST, HIGHEST)


def shrunk(estimate: float, standard_error: float) -> float:
    """The estimate pulled to zero by how unsure it is, and capped."""
    if abs(estimate) <= standard_error:
        return 0.0
    factor = 1 - (standard_error / estimate) ** 2
    return float(np.clip(factor * estimate, -CAP_POINTS, CAP_POINTS))


def _terms(effects: Sequence[Effect]) -> Iterator[CorrectionTerm]:
    by_outcome = _outcomes_differ(effects)
    for effect in effects:
        term = _term(effect)
        yield term if (effect.stratum != "all") is by_outcome else replace(term, points=0.0)


def _outcomes_differ(effects: Sequence[Effect]) -> bool:
    estimates = {effect.stratum: effect.estimate for effect in effects}
    if not {"right", "wrong"} <= estimates.keys():
        return False
    right, wrong = estimates["right"], estimates["wrong"]
    error = float(np.hypot(right.standard_error, wrong.standard_error))
    return bool(abs(right.value - wrong.value) > DIFFERENT_Z * error)


def _term(effect: Effect) -> CorrectionTerm:
    estimate = effect.estimate
    proven = effect.judged.verdict == "biased"
    points = shrunk(estimate.value, estimate.standard_error) if proven else 0.0
    return CorrectionTerm(
        task_type=effect.subject,
        stratum=effect.stratum,
        estimate=estimate.value,
        points=points,
        verdict=effect.judged.verdict,
    )
