"""Since when a coach was biased, and what that did to the policy, as figures.

Both follow the experiment where there is one, and otherwise the regression.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame, Mask
from mappa_core.audit.records import AuditedRun, CorrectionTerm, Figure, Stratum
from mappa_core.audit.score_figures import measured
from mappa_core.audit.statistics.debias import (
    correction_terms,
    experiment_terms,
    points_off,
    points_off_sql,
)
from mappa_core.audit.statistics.effects import Effect
from mappa_core.audit.statistics.observational import ALARMS
from mappa_core.audit.statistics.onset import gaps, onset
from mappa_core.audit.statistics.paired import PairedEffect
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.trends import growth
from mappa_core.audit.statistics.updates import update_shares

Gap: TypeAlias = tuple[str, str, str]
"""Two task types, and the episodes, the agent or both, of whose work one is paid more."""


def onset_figures(
    frame: Frame, effects: Sequence[Effect], experiment: Sequence[PairedEffect]
) -> Iterator[Figure]:
    """Since when, for every pair of types with a gap in some episodes."""
    names = frame.task_type.names
    found_in = _biased(experiment) if experiment else dict.fromkeys(_alarmed(effects))
    for (subject, against, stratum), size in _dated(found_in):
        code, other = names.index(subject), names.index(against)
        pair = frame.take(np.isin(frame.task_type.codes, (code, other)))
        counted = ~np.isnan(pair.score) & _inside(pair, stratum)
        found = onset(gaps(pair, code, counted), size)
        pair = pair.take(counted)
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
                detail={
                    "points_since": found.size,
                    "could_be": ", ".join(map(str, found.could_be)),
                },
            )


def policy_figures(
    run: AuditedRun, frame: Frame, effects: Sequence[Effect], experiment: Sequence[PairedEffect]
) -> Iterator[Figure]:
    """What the bias did, where there is one."""
    terms = experiment_terms(experiment) if experiment else correction_terms(effects)
    bias = points_off(terms, frame)
    if not bias.any():
        return
    yield from _shares(run, frame, bias, points_off_sql(terms))
    for name, stratum in _favoured(terms, frame):
        yield from _growth(frame, name, stratum)


def _alarmed(effects: Sequence[Effect]) -> list[Gap]:
    return [(e.subject, e.against, e.stratum) for e in effects if e.judged.verdict in ALARMS]


def _biased(experiment: Sequence[PairedEffect]) -> dict[Gap, Estimate | None]:
    """The favoured type first, and how many points it gets more."""
    found: dict[Gap, Estimate | None] = {}
    for each in experiment:
        if each.types is not None and each.verdict == "biased":
            one, other = each.types if each.estimate.value > 0 else each.types[::-1]
            size = replace(each.estimate, value=abs(each.estimate.value))
            found[one, other, each.stratum] = size
    return found


def _dated(found_in: Mapping[Gap, Estimate | None]) -> Iterator[tuple[Gap, Estimate | None]]:
    """Yield pairs and episodes: parts of them alone where what holds them does not make a gap."""
    for (one, other, stratum), size in found_in.items():
        wholes = ["all", *stratum.split(", ")] if stratum != "all" else []
        if not any((one, other, whole) in found_in for whole in wholes if whole != stratum):
            yield (one, other, stratum), size


def _inside(frame: Frame, stratum: str) -> Mask:
    """(N,) actions of right or wrong episodes, of an agent, of both, or all with an outcome."""
    agent, _, outcome = stratum.rpartition(", ")
    if outcome not in ("right", "wrong"):
        agent, outcome = "" if stratum == "all" else stratum, ""
    inside = ~np.isnan(frame.success)
    if outcome:
        inside &= frame.success == (outcome == "right")
    if agent:
        inside &= np.array([name == agent for name in frame.agent.names])[frame.agent.codes]
    return inside


def _shares(run: AuditedRun, frame: Frame, bias: Floats, points: str) -> Iterator[Figure]:
    """What of each update the bias was."""
    for update in update_shares(frame, bias, run.rule):
        yield Figure(
            kind="update_share",
            subject=update.agent,
            estimate=update.share,
            unit="share of the advantage",
            iteration=update.iteration,
            actions=update.actions,
            sql=sql.update_share(update.agent, update.iteration, points, run.rule),
            detail={
                "pull": update.pull,
                "gap_of_advantages": update.gap,
                "of_the_bias": update.gap_of_bias,
            },
        )


def _favoured(terms: Sequence[CorrectionTerm], frame: Frame) -> Iterator[tuple[str, Stratum]]:
    """Yield the types that were paid more, by name; of two, what one lost the other was given."""
    present = [frame.task_type.names[code] for code in frame.task_type.present()]
    for term in terms:
        if term.points > 0:
            yield term.task_type, term.stratum
        elif term.points < 0 and len(present) == 2:
            yield present[1 - present.index(term.task_type)], term.stratum


def _growth(frame: Frame, name: str, stratum: Stratum) -> Iterator[Figure]:
    """Whether success on a type that was paid too much rose more than on the others."""
    grown = growth(frame, frame.task_type.names.index(name))
    if grown is not None:
        figure = Figure(
            kind="specialisation",
            subject=name,
            against="the other types",
            stratum=stratum,
            verdict=_growth_verdict(grown.estimate),
            unit="success over the run",
            actions=grown.actions,
            problems=grown.problems,
            sql=grown.sql,
        )
        yield measured(figure, grown.estimate)


def _growth_verdict(estimate: Estimate) -> str:
    """What success did; why is not known, for a type may be easier to learn."""
    low, high = estimate.interval()
    if low > 0:
        return "rose more"
    return "rose less" if high < 0 else "cannot tell"
