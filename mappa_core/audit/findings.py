"""From what an audit reads to its findings, each beside the query it rests on; nothing is written.

scores, ratings, labels, anchors ─▶ statistics ─▶ figures ─▶ findings, and the run's verdict
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame, LabelledScores, Ratings
from mappa_core.audit.records import AuditedRun, CorrectionTerm, Figure, Finding
from mappa_core.audit.score_figures import (
    health_figures,
    label_figures,
    measured,
    scorer_figures,
)
from mappa_core.audit.statistics.debias import correction_terms, points_off, points_off_sql
from mappa_core.audit.statistics.effects import Effect, associations, task_type_effects
from mappa_core.audit.statistics.onset import gaps, onset
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.trends import growth
from mappa_core.audit.statistics.updates import update_shares
from mappa_core.audit.statistics.verdicts import Verdict, overall
from mappa_core.audit.watch.history import AnchorHistory, drift_figures, score_stream
from mappa_core.core import ids

KINDS = (
    "task_type",
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
    margin: float
    """In points."""
    alerts: tuple[Finding, ...] = ()
    """What was said while it trained; shown, never written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What an audit found."""

    findings: tuple[Finding, ...]
    effects: tuple[Effect, ...]
    """The task-type family behind the verdict."""

    @property
    def verdict(self) -> Verdict:
        """Over all task-type comparisons: biased if one is, equivalent if all are."""
        return overall([effect.judged.verdict for effect in self.effects])

    @property
    def biased(self) -> tuple[str, ...]:
        """The task types that the coach prefers, or the reverse, in some episodes."""
        return tuple(dict.fromkeys(effect.subject for effect in _biased(self.effects)))


def audit(seen: AuditInput) -> AuditResult:
    """Work out every figure of one run; takes seconds for a million actions."""
    frame = seen.frame
    effects = task_type_effects(frame, seen.margin)
    figures = [
        *(_effect("task_type", each) for each in effects),
        *_onsets(frame, effects),
        *(_effect("association", each) for each in associations(frame, seen.margin)),
        *_policy(seen, effects),
        *health_figures(frame),
        *scorer_figures(seen.ratings),
        *label_figures(seen.labelled),
        *drift_figures(score_stream(frame), seen.anchors),
    ]
    found = tuple(as_finding(figure, seen.run.id) for figure in figures)
    return AuditResult(findings=found + seen.alerts, effects=effects)


def as_finding(figure: Figure, run_id: UUID) -> Finding:
    """The figure as one of a run; numbers that are not finite are absent."""
    number = "" if figure.iteration is None else figure.iteration
    values: dict[str, Any] = {each.name: getattr(figure, each.name) for each in fields(figure)}
    values |= {name: _finite(values[name]) for name in ("estimate", "low", "high", "p_value")}
    values["sql"] = sql.of_run(figure.sql, run_id)
    values["detail"] = {key: _finite(value) for key, value in figure.detail.items()}
    return Finding(
        id=ids.content_id("finding", run_id, figure.kind, figure.subject, figure.stratum, number),
        run_id=run_id,
        **values,
    )


def _finite(value: float | str | None) -> float | str | None:
    """The value, or None where it is a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _biased(effects: Sequence[Effect]) -> list[Effect]:
    return [effect for effect in effects if effect.judged.verdict == "biased"]


def _effect(kind: str, effect: Effect) -> Figure:
    judged = effect.judged
    figure = Figure(
        kind=kind,
        subject=effect.subject,
        against=effect.against,
        stratum=effect.stratum,
        # What goes with a score may be deserved, so it gets no verdict.
        verdict=judged.verdict if kind == "task_type" else "",
        p_value=judged.adjusted_p,
        margin=judged.margin if kind == "task_type" else None,
        actions=effect.actions,
        problems=effect.problems,
        sql=effect.sql,
        detail={
            "equivalence_p": judged.equivalence_p,
            "more_actions": judged.more_actions,
            "factor": effect.factor,
        },
    )
    return measured(figure, effect.estimate)


def _onsets(frame: Frame, effects: Sequence[Effect]) -> Iterator[Figure]:
    """Since when, for every type that is biased anywhere."""
    frame = frame.judged()
    for subject in dict.fromkeys(effect.subject for effect in _biased(effects)):
        found = onset(gaps(frame, frame.task_type.names.index(subject)))
        if found is not None:
            yield Figure(
                kind="onset",
                subject=subject,
                estimate=float(found.iteration),
                unit="iteration",
                low=float(found.earliest),
                high=float(found.latest),
                iteration=found.iteration,
                actions=len(frame),
                problems=frame.problem_count,
                sql=sql.gap_by_iteration(subject),
                detail={"points_since": found.size},
            )


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
