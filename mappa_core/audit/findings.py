"""From what an audit reads to its findings, each beside the query it rests on; nothing is written.

scores, ratings, labels, anchors ─▶ statistics ─▶ figures ─▶ findings, and the run's verdict
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import UUID

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.experiment_figures import experiment_figures
from mappa_core.audit.frame import Experiment, Floats, Frame, LabelledScores, Ratings
from mappa_core.audit.records import AuditedRun, CorrectionTerm, Figure, Finding, Stratum
from mappa_core.audit.score_figures import (
    health_figures,
    label_figures,
    measured,
    scorer_figures,
)
from mappa_core.audit.statistics.debias import correction_terms, points_off, points_off_sql
from mappa_core.audit.statistics.effects import (
    Comparison,
    Effect,
    associations,
    cell_effects,
    task_type_effects,
    words,
)
from mappa_core.audit.statistics.observational import ALARMS, Word, overall_word
from mappa_core.audit.statistics.onset import gaps, onset
from mappa_core.audit.statistics.paired import (
    PairedEffect,
    biased_by,
    experiment_effects,
    experiment_verdict,
)
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.trends import growth
from mappa_core.audit.statistics.updates import update_shares
from mappa_core.audit.watch.anchors import AnchorHistory
from mappa_core.audit.watch.history import drift_figures, score_stream
from mappa_core.core import ids

KINDS = (
    "experiment",
    "task_type",
    "task_type_cell",
    "onset",
    "association",
    "update_share",
    "specialisation",
    "health",
    "unscored",
    "divergence",
    "noise",
    "second_coach",
    "people",
    "drift",
)
"""What one audit of a run writes, and replaces when it is done again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditInput:
    """Everything an audit of one run looks at."""

    run: AuditedRun
    frame: Frame
    ratings: Ratings
    labelled: LabelledScores
    anchors: AnchorHistory
    experiment: Experiment
    """What the coach was asked about stored actions, with one thing changed."""
    margin: float
    """In points."""
    alerts: tuple[Finding, ...] = ()
    """What was said while it trained; shown, never written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What an audit found."""

    findings: tuple[Finding, ...]
    effects: tuple[Effect, ...]
    """The comparisons of task types."""
    cells: tuple[Effect, ...] = ()
    """The same within agents, outcomes and parts of the run, and length."""
    experiment: tuple[PairedEffect, ...] = ()
    """What each change to a stored action was worth to the coach; empty where it was not asked."""

    @property
    def verdict(self) -> Word:
        """The experiment's where there is one, and otherwise the observational one."""
        return experiment_verdict(self.experiment) if self.experiment else self.observational

    @property
    def observational(self) -> Word:
        """Of the regression: biased or suspected if one comparison is, equivalent if all are."""
        return overall_word(words([*self.effects, *self.cells]))

    @property
    def biased(self) -> tuple[str, ...]:
        """The task types that the coach prefers, or the reverse, in some episodes."""
        if self.experiment:
            return biased_by(self.experiment)
        found = [each for each in (*self.effects, *self.cells) if each.judged.verdict == "biased"]
        return tuple(dict.fromkeys(_named(each) for each in found))


def audit(seen: AuditInput) -> AuditResult:
    """Work out every figure of one run; takes seconds for a million actions."""
    frame = seen.frame
    effects = task_type_effects(frame, seen.margin)
    cells = cell_effects(frame, effects, seen.margin)
    experiment = experiment_effects(seen.experiment, seen.margin)
    figures = [
        *experiment_figures(experiment),
        *(_effect("task_type", each) for each in effects),
        *(_effect("task_type_cell", each) for each in cells),
        *_onsets(frame, effects),
        *map(_association, associations(frame)),
        *_policy(seen, effects),
        *health_figures(frame),
        *scorer_figures(seen.ratings),
        *label_figures(seen.labelled),
        *drift_figures(score_stream(frame), seen.anchors),
    ]
    found = tuple(as_finding(figure, seen.run.id) for figure in figures)
    return AuditResult(
        findings=found + seen.alerts, effects=effects, cells=cells, experiment=experiment
    )


def as_finding(figure: Figure, run_id: UUID) -> Finding:
    """The figure as one of a run; numbers that are not finite are absent."""
    number = "" if figure.iteration is None else figure.iteration
    values: dict[str, Any] = {each.name: getattr(figure, each.name) for each in fields(figure)}
    values |= {name: _finite(values[name]) for name in ("estimate", "low", "high", "p_value")}
    values["sql"] = sql.of_run(figure.sql, run_id)
    values["detail"] = {key: _finite(value) for key, value in figure.detail.items()}
    return Finding(
        id=ids.content_id("finding", run_id, figure.kind, _pair(figure), figure.stratum, number),
        run_id=run_id,
        **values,
    )


def _finite(value: float | str | None) -> float | str | None:
    """The value, or None where it is a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _pair(figure: Figure) -> str:
    """What tells a figure from others of its kind: of task types, each pair is compared."""
    paired = figure.kind.startswith("task_type") or figure.kind == "onset"
    return f"{figure.subject} against {figure.against}" if paired else figure.subject


def _named(effect: Effect) -> str:
    return effect.subject if effect.types == 2 else f"{effect.subject} against {effect.against}"


def _compared(kind: str, effect: Comparison) -> Figure:
    figure = Figure(
        kind=kind,
        subject=effect.subject,
        against=effect.against,
        stratum=", ".join(part for part in (effect.stratum, effect.cell) if part),
        actions=effect.actions,
        problems=effect.problems,
        sql=effect.sql,
        detail={"factor": effect.factor},
    )
    return measured(figure, effect.estimate)


def _association(effect: Comparison) -> Figure:
    """What goes with a score may be deserved, so it gets no verdict."""
    return _compared("association", effect)


def _effect(kind: str, effect: Effect) -> Figure:
    judged, figure = effect.judged, _compared(kind, effect)
    unknown = judged.unknown
    assert figure.low is not None
    assert figure.high is not None
    return replace(
        figure,
        # Missing scores widen the interval.
        low=figure.low + unknown.missing_low,
        high=figure.high + unknown.missing_high,
        verdict=judged.verdict,
        p_value=judged.adjusted_p,
        margin=judged.margin,
        detail={
            "beyond": judged.beyond or None,
            "sensitivity": judged.robustness,
            "unmeasured_points": unknown.unmeasured,
            "measured_points": unknown.measured,
            "equivalence_p": judged.equivalence_p,
            "more_actions": judged.more_actions,
            "factor": effect.factor,
        },
    )


def _onsets(frame: Frame, effects: Sequence[Effect]) -> Iterator[Figure]:
    """Since when, for every pair of types with a gap in some episodes."""
    frame = frame.judged()
    names = frame.task_type.names
    found_in = [effect for effect in effects if effect.judged.verdict in ALARMS]
    for subject, against, stratum in _dated(found_in):
        code, other = names.index(subject), names.index(against)
        pair = frame.take(np.isin(frame.task_type.codes, (code, other)))
        if stratum != "all":
            pair = pair.take(pair.success == (stratum == "right"))
        found = onset(gaps(pair, code))
        if found is not None:
            yield Figure(
                kind="onset",
                subject=subject,
                against=against,
                stratum=stratum,
                estimate=float(found.iteration),
                unit="iteration",
                low=float(found.earliest),
                high=float(found.latest),
                iteration=found.iteration,
                actions=len(pair),
                problems=pair.problem_count,
                sql=sql.gap_by_iteration(subject, against),
                detail={"points_since": found.size},
            )


def _dated(effects: Sequence[Effect]) -> Iterator[tuple[str, str, Stratum]]:
    """Yield pairs and episodes: right and wrong ones apart where they do not make one gap."""
    for pair in dict.fromkeys((each.subject, each.against) for each in effects):
        strata: list[Stratum] = [e.stratum for e in effects if (e.subject, e.against) == pair]
        for stratum in strata:
            if stratum == "all" or "all" not in strata:
                yield pair[0], pair[1], stratum


def _policy(seen: AuditInput, effects: Sequence[Effect]) -> Iterator[Figure]:
    """What the bias did, where there is one."""
    terms = correction_terms(effects)
    bias = points_off(terms, seen.frame)
    if not bias.any():
        return
    yield from _shares(seen, bias, points_off_sql(terms))
    for term in terms:
        if term.points:
            yield from _specialisation(seen.frame, term)


def _shares(seen: AuditInput, bias: Floats, points: str) -> Iterator[Figure]:
    """What of each update the bias was."""
    by_problem = seen.run.by_problem
    for update in update_shares(seen.frame, bias, by_problem=by_problem):
        yield Figure(
            kind="update_share",
            subject=update.agent,
            estimate=update.share,
            unit="share of the advantage",
            iteration=update.iteration,
            actions=update.actions,
            sql=sql.update_share(update.agent, update.iteration, points, by_problem=by_problem),
            detail={"pull": update.pull},
        )


def _specialisation(frame: Frame, term: CorrectionTerm) -> Iterator[Figure]:
    """Whether success on a type that was paid too much, or too little, went its own way."""
    grown = growth(frame, frame.task_type.names.index(term.task_type))
    if grown is not None:
        figure = Figure(
            kind="specialisation",
            subject=term.task_type,
            against="the other types",
            stratum=term.stratum,
            verdict=_growth_verdict(grown.estimate),
            unit="success over the run",
            actions=grown.actions,
            problems=grown.problems,
            sql=grown.sql,
        )
        yield measured(figure, grown.estimate)


def _growth_verdict(estimate: Estimate) -> str:
    low, high = estimate.interval()
    if low > 0:
        return "grew"
    return "shrank" if high < 0 else "cannot tell"
