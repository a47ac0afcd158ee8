"""A whole audit: from the frame to findings, each beside the query it rests on.

frame, opinions, labels, anchors ─▶ figures ─▶ Finding rows, and the run's verdict
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.auditing import sql
from mappa_core.auditing.agreement import LabelledScores, agreement, corrected_mean
from mappa_core.auditing.debias import correction, points_off, points_off_sql
from mappa_core.auditing.design import Effect, associations, growth, task_type_effects
from mappa_core.auditing.effects import Estimate
from mappa_core.auditing.frame import Frame
from mappa_core.auditing.health import divergences, health, missing
from mappa_core.auditing.noise import noise
from mappa_core.auditing.onset import gaps, onset
from mappa_core.auditing.opinions import Opinions
from mappa_core.auditing.policy_bias import update_shares
from mappa_core.auditing.verdicts import Verdict
from mappa_core.auditing.watch import AnchorHistory, drift_findings, stream
from mappa_core.auditing.writing import Draft, measured
from mappa_core.domain.audit import AuditedRun, Finding

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
        *_health(material),
        *_others(material),
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
    off = points_off_sql(terms)
    for update in update_shares(frame, bias, by_problem=material.run.baseline != "none"):
        yield Draft(
            kind="update_share",
            subject=update.agent,
            estimate=update.share,
            unit="share of the advantage",
            iteration=update.iteration,
            actions=update.actions,
            sql=sql.update_share(
                update.agent, update.iteration, off, by_problem=material.run.baseline != "none"
            ),
            detail={"pull": update.pull},
        )
    known = frame.take(~np.isnan(frame.success))
    for term in terms.terms:
        code = frame.task_type.names.index(term.task_type)
        grown = growth(frame, code) if term.points else None
        if grown is not None:
            yield measured(
                grown.estimate,
                Draft(
                    kind="specialisation",
                    subject=term.task_type,
                    against="the other types",
                    stratum=term.stratum,
                    verdict=_grew(grown.estimate),
                    unit="success over the run",
                    actions=len(known),
                    problems=len(known.problem.present()),
                    sql=grown.sql,
                ),
            )


def _grew(estimate: Estimate) -> str:
    low, high = estimate.interval()
    if low > 0:
        return "grew"
    return "shrank" if high < 0 else "cannot tell"


def _health(material: Material) -> Iterator[Draft]:
    frame = material.frame
    for code in frame.task_type.present():
        name, rows = frame.task_type.names[code], frame.take(frame.task_type.codes == code)
        described = health(rows)
        if described is not None:
            yield Draft(
                kind="health",
                subject=name,
                estimate=described.at_mode,
                unit=f"share at the mode ({described.mode:g})",
                actions=described.actions,
                problems=len(rows.problem.present()),
                sql=sql.health(f"task_type = {sql.quoted(name)}"),
                detail={
                    "mean": described.mean,
                    "deviation": described.deviation,
                    "at_ceiling": described.at_ceiling,
                    "entropy_bits": described.entropy_bits,
                    "unparsed": described.unparsed,
                },
            )
        worst = missing(frame, code)
        if worst is not None:
            yield Draft(
                kind="unscored",
                subject=name,
                against="the other types",
                estimate=worst.share,
                unit="share without a score",
                actions=len(rows),
                problems=len(rows.problem.present()),
                sql=sql.unscored(name),
                detail={
                    "gap": worst.gap,
                    "lowest_gap": worst.lowest_gap,
                    "highest_gap": worst.highest_gap,
                    "possible_bias": worst.possible_bias,
                },
            )
    for apart in divergences(frame):
        yield measured(
            apart.estimate,
            Draft(
                kind="divergence",
                subject=f"{apart.agent}, {apart.task_type}",
                unit="change of score / 10 minus success",
                actions=apart.actions,
                problems=apart.problems,
                sql=apart.sql,
            ),
        )


def _others(material: Material) -> Iterator[Draft]:
    """Repeats, other coaches and people."""
    opinions = material.opinions
    trainer = opinions.trainer
    if trainer is not None:
        yield from _repeats(opinions, trainer)
        for code in opinions.scorer.present():
            if code != trainer:
                yield from _second(opinions, trainer, code)
    yield from _people(material.labelled)


def _people(labelled: LabelledScores) -> Iterator[Draft]:
    """Whether people agree, and what they would have said on average."""
    agreed = agreement(labelled.scores, labelled.labels)
    if agreed is not None:
        yield Draft(
            kind="people",
            subject="the coach and people",
            estimate=agreed.alpha,
            unit="Krippendorff's alpha",
            low=agreed.low,
            high=agreed.high,
            actions=agreed.actions,
            sql=sql.LABELS,
            detail={"kappa": agreed.kappa, "difference": agreed.difference},
        )
    people = corrected_mean(labelled)
    if people is not None:
        yield Draft(
            kind="people",
            subject="mean score people would give",
            estimate=people.value,
            unit="points",
            low=people.low,
            high=people.high,
            actions=people.labels,
            sql=sql.PEOPLES_MEAN,
            detail={"trust": people.trust},
        )


def _repeats(opinions: Opinions, trainer: int) -> Iterator[Draft]:
    found = noise(opinions.table(trainer))
    if found is not None:
        yield Draft(
            kind="noise",
            subject=opinions.scorer.names[trainer],
            estimate=found.within_deviation,
            unit="points within an action",
            actions=found.actions,
            sql=sql.repeats(opinions.scorer.names[trainer]),
            detail={
                "reliability": found.reliability,
                "reliability_low": found.low,
                "reliability_high": found.high,
                "flips": found.flips,
                "repeats": found.repeats,
            },
        )


def _second(opinions: Opinions, trainer: int, code: int) -> Iterator[Draft]:
    agreed = agreement(opinions.means(trainer), opinions.means(code))
    if agreed is not None:
        yield Draft(
            kind="second_coach",
            subject=opinions.scorer.names[code],
            against=opinions.scorer.names[trainer],
            estimate=agreed.alpha,
            unit="Krippendorff's alpha",
            low=agreed.low,
            high=agreed.high,
            actions=agreed.actions,
            sql=sql.second(opinions.scorer.names[trainer], opinions.scorer.names[code]),
            detail={"kappa": agreed.kappa, "difference": agreed.difference},
        )


def by_scores(frame: Frame, code: int) -> np.ndarray:
    """The scores of one task type, for plots."""
    scores = frame.score[frame.task_type.codes == code]
    return scores[~np.isnan(scores)]
