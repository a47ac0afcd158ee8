"""From what an audit reads to its findings, each beside the query it rests on; nothing is written.

scores, ratings, labels, anchors ─▶ statistics ─▶ figures ─▶ findings, and the run's verdict
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import UUID

from mappa_core.audit import sql
from mappa_core.audit.experiment_figures import experiment_figures
from mappa_core.audit.frame import Experiment, Frame, LabelledScores, Ratings
from mappa_core.audit.policy_figures import onset_figures, policy_figures
from mappa_core.audit.records import AuditedRun, Figure, Finding
from mappa_core.audit.score_figures import (
    health_figures,
    label_figures,
    measured,
    scorer_figures,
)
from mappa_core.audit.statistics.effects import (
    Comparison,
    Effect,
    associations,
    cell_effects,
    task_type_effects,
    words,
)
from mappa_core.audit.statistics.observational import ALARMS, Word, overall_word
from mappa_core.audit.statistics.paired import (
    PairedEffect,
    biased_by,
    experiment_effects,
    experiment_verdict,
)
from mappa_core.audit.watch.anchors import AnchorHistory
from mappa_core.audit.watch.drifting import DRIFT_KINDS, DriftState, drift_figures, drift_state
from mappa_core.audit.watch.history import score_stream
from mappa_core.audit.watch.versions import ModelChange
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
    *DRIFT_KINDS,
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
    changes: tuple[ModelChange, ...] = ()
    """Of the model behind the coach, as its replies said."""
    experiment: Experiment
    """What the coach was asked about stored actions, with one thing changed."""
    margin: float
    """In points."""
    look: int = 1
    """How often the run was audited as it grew, this time included."""
    counted: bool = True
    """Whether this time is written down, so that the next one is a later look."""
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
    drift: DriftState | None = None
    """Whether coach, rubric or policy changed while it trained, and what is likely behind it."""

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

    @property
    def alarming(self) -> tuple[str, ...]:
        """The comparisons of which the regression says biased or suspected, in some episodes."""
        found = [each for each in (*self.effects, *self.cells) if each.judged.verdict in ALARMS]
        return tuple(dict.fromkeys(f"{each.subject} against {each.against}" for each in found))


def audit(seen: AuditInput) -> AuditResult:
    """Work out every figure of one run; takes seconds for a million actions."""
    frame = seen.frame
    effects = task_type_effects(frame, seen.margin, seen.look)
    cells = cell_effects(frame, effects, seen.margin, seen.look)
    experiment = experiment_effects(seen.experiment, seen.margin, seen.look)
    stream = score_stream(frame)
    drift = drift_state(stream, seen.anchors, seen.changes)
    figures = [
        *experiment_figures(experiment),
        *(_effect("task_type", each) for each in effects),
        *(_effect("task_type_cell", each) for each in cells),
        *onset_figures(frame, effects, experiment),
        *map(_association, associations(frame)),
        *policy_figures(seen.run, frame, effects, experiment),
        *health_figures(frame),
        *scorer_figures(seen.ratings),
        *label_figures(seen.labelled),
        *drift_figures(drift, stream),
    ]
    found = tuple(as_finding(figure, seen.run.id) for figure in figures)
    return AuditResult(
        findings=found + seen.alerts,
        effects=effects,
        cells=cells,
        experiment=experiment,
        drift=drift,
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
    paired = figure.kind.startswith("task_type") or figure.kind in ("onset", "second_coach")
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
