"""A whole audit: from the frame to findings, each beside the query it rests on.

frame, opinions, labels, anchors ─▶ figures ─▶ Finding rows, and the run's verdict
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.opinions import Opinions
from mappa_core.audit.others import other_findings
from mappa_core.audit.records import AuditedRun, Finding
from mappa_core.audit.statistics.agreement import LabelledScores
from mappa_core.audit.statistics.debias import correction, points_off, points_off_sql
from mappa_core.audit.statistics.effects import Effect, associations, growth, task_type_effects
from mappa_core.audit.statistics.health import health_findings
from mappa_core.audit.statistics.onset import gaps, onset
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.updates import update_shares
from mappa_core.audit.statistics.verdicts import Verdict
from mappa_core.audit.watch.history import AnchorHistory, drift_findings, stream
from mappa_core.audit.writing import Draft, measured

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
class Material:
    """Everything an audit of one run looks at."""

    run: AuditedRun
    frame: Frame
    opinions: Opinions
    labelled: LabelledScores
    anchors: AnchorHistory
    margin: float
    """In points."""
    alerts: tuple[Finding, ...] = ()
    """What was said while it trained; shown, never written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The answer."""

    verdict: Verdict
    """Over all task-type comparisons: biased if one is, equivalent if all are."""
    findings: tuple[Finding, ...]
    effects: tuple[Effect, ...]
    """The task-type family behind the verdict."""


def audit(material: Material) -> Audit:
    """Work out every figure of one run.

    Takes seconds for a million actions; asks nobody and writes nothing.
    """
    effects = task_type_effects(material.frame, material.margin)
    drafts = [
        *(_effect("task_type", each) for each in effects),
        *_onsets(material, effects),
        *(_effect("association", each) for each in associations(material.frame, material.margin)),
        *_policy(material, effects),
        *health_findings(material.frame),
        *other_findings(material.opinions, material.labelled),
        *drift_findings(stream(material.frame), material.anchors),
    ]
    return Audit(
        verdict=overall([each.judged.verdict for each in effects]),
        findings=(*(each.finding(material.run.id) for each in drafts), *material.alerts),
        effects=effects,
    )


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of a family: biased if any is, equivalent if there are some and all are."""
    if "biased" in verdicts:
        return "biased"
    return "equivalent" if verdicts and set(verdicts) == {"equivalent"} else "cannot tell"


def _effect(kind: str, effect: Effect) -> Draft:
    judged = effect.judged
    return measured(
        judged.estimate,
        Draft(
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
        ),
    )


def _onsets(material: Material, effects: Sequence[Effect]) -> Iterator[Draft]:
    """Since when, for every type that is biased anywhere."""
    frame = material.frame.judged()
    for subject in dict.fromkeys(e.subject for e in effects if e.judged.verdict == "biased"):
        found = onset(gaps(frame, frame.task_type.names.index(subject)))
        if found is not None:
            yield Draft(
                kind="onset",
                subject=subject,
                estimate=float(found.iteration),
                unit="iteration",
                low=float(found.earliest),
                high=float(found.latest),
                iteration=found.iteration,
                actions=len(frame),
                problems=len(frame.problem.present()),
                sql=sql.gap_by_iteration(subject),
                detail={"points_since": found.size},
            )


def _policy(material: Material, effects: Sequence[Effect]) -> Iterator[Draft]:
    """What the bias did, where there is one."""
    frame = material.frame
    terms = correction(effects, run_id=material.run.id, iteration=0, coach="", rubric_sha256="")
    bias = points_off(terms, frame)
    if not bias.any():
        return
    yield from _shares(material, bias, points_off_sql(terms))
    for term in terms.terms:
        if term.points:
            yield from _grown(frame, term.task_type, term.stratum)


def _shares(material: Material, bias: Floats, off: str) -> Iterator[Draft]:
    """What of each update the bias was."""
    by_problem = material.run.by_problem
    for update in update_shares(material.frame, bias, by_problem=by_problem):
        yield Draft(
            kind="update_share",
            subject=update.agent,
            estimate=update.share,
            unit="share of the advantage",
            iteration=update.iteration,
            actions=update.actions,
            sql=sql.update_share(update.agent, update.iteration, off, by_problem=by_problem),
            detail={"pull": update.pull},
        )


def _grown(frame: Frame, task_type: str, stratum: str) -> Iterator[Draft]:
    """Whether success on a type that was paid too much, or too little, went its own way."""
    grown = growth(frame, frame.task_type.names.index(task_type))
    if grown is not None:
        known = frame.take(~np.isnan(frame.success))
        draft = Draft(
            kind="specialisation",
            subject=task_type,
            against="the other types",
            stratum=stratum,
            verdict=_grew(grown.estimate),
            unit="success over the run",
            actions=len(known),
            problems=len(known.problem.present()),
            sql=grown.sql,
        )
        yield measured(grown.estimate, draft)


def _grew(estimate: Estimate) -> str:
    low, high = estimate.interval()
    if low > 0:
        return "grew"
    return "shrank" if high < 0 else "cannot tell"
