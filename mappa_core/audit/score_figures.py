"""The scores themselves as figures: their health, their noise, and what other scorers say."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mappa_core.audit import beside_sql, sql
from mappa_core.audit.frame import Floats, Frame, Ints, LabelledScores, Ratings
from mappa_core.audit.records import Figure
from mappa_core.audit.statistics.agreement import Agreement, agreement, corrected_mean
from mappa_core.audit.statistics.beside import Difference, TooFewLabels, differences
from mappa_core.audit.statistics.calibration import ALPHA_DIVERGENCE
from mappa_core.audit.statistics.health import health, missing
from mappa_core.audit.statistics.noise import noise
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.trends import Divergence
from mappa_core.audit.watch.history import RunningSums


def health_figures(frame: Frame) -> Iterator[Figure]:
    """How the scores look, type by type, and whether success goes along with them."""
    for code in frame.task_type.present():
        rows = frame.take(frame.task_type.codes == code)
        yield from _described(frame.task_type.names[code], rows)
        yield from _unscored(frame, code, rows)
    for each in RunningSums.of(frame).divergences():
        yield measured(_divergence(each), each.estimate)


def _divergence(found: Divergence) -> Figure:
    low, high = found.score.interval()
    return Figure(
        kind="divergence",
        subject=f"{found.agent}, {found.task_type}",
        verdict=f"diverges since {found.since}" if found.bets.alarmed else "",
        unit="success at equal score, over the run",
        margin=found.bets.threshold,
        actions=found.actions,
        problems=found.problems,
        sql=found.sql,
        detail={
            "score_at_equal_outcome": found.score.value,
            "score_low": low,
            "score_high": high,
            "largest_e_value": float(found.bets.e_values.max()),
            "false_alarms_at_most": ALPHA_DIVERGENCE,
        },
    )


def _described(name: str, rows: Frame) -> Iterator[Figure]:
    found = health(rows)
    if found is not None:
        yield Figure(
            kind="health",
            subject=name,
            estimate=found.at_mode,
            unit=f"share at the mode ({found.mode:g})",
            actions=found.actions,
            problems=rows.problem_count,
            sql=sql.health(f"task_type = {sql.quoted(name)}"),
            detail={
                "mean": found.mean,
                "deviation": found.deviation,
                "at_ceiling": found.at_ceiling,
                "entropy_bits": found.entropy_bits,
                "unparsed": found.unparsed,
            },
        )


def _unscored(frame: Frame, code: int, rows: Frame) -> Iterator[Figure]:
    found = missing(frame, code)
    if found is not None:
        name = frame.task_type.names[code]
        yield Figure(
            kind="unscored",
            subject=name,
            against="the other types",
            estimate=found.share,
            unit="share without a score",
            actions=len(rows),
            problems=rows.problem_count,
            sql=sql.unscored(name),
            detail={
                "gap": found.gap,
                "lowest_gap": found.lowest_gap,
                "highest_gap": found.highest_gap,
                "possible_bias": found.possible_bias,
            },
        )


def scorer_figures(ratings: Ratings) -> Iterator[Figure]:
    """What the coach's own repeats and other coaches say of its scores."""
    if ratings.trainer is None:
        return
    trainer = ratings.scorer.names[ratings.trainer]
    first = np.unique(ratings.action.codes, return_index=True)[1]
    yield from _repeats(trainer, ratings.table(ratings.trainer), ratings.problem.codes[first])
    for code in ratings.scorer.present():
        if code == ratings.trainer:
            continue
        other, beside = ratings.scorer.names[code], ratings.beside(code)
        agreed = agreement(beside.scores, beside.labels, beside.problem.codes)
        if agreed is not None:
            figure = _agreed("second_coach", other, agreed, sql.second(trainer, other))
            yield replace(figure, against=trainer)
        for found in differences(beside):
            query = beside_sql.coaches(found, trainer, other)
            yield replace(_apart("second_coach", found, query), subject=trainer, against=other)


def _repeats(trainer: str, table: Floats, problems: Ints) -> Iterator[Figure]:
    found = noise(table, problems)
    if found is not None:
        yield Figure(
            kind="noise",
            subject=trainer,
            estimate=found.within_deviation,
            unit="points within an action",
            actions=found.actions,
            sql=sql.repeats(trainer),
            detail={
                "reliability": found.reliability,
                "reliability_low": found.low,
                "reliability_high": found.high,
                "flips": found.flips,
                "repeats": found.repeats,
            },
        )


def label_figures(labelled: LabelledScores) -> Iterator[Figure]:
    """Whether people agree, and what they would have said on average."""
    agreed = agreement(labelled.scores, labelled.labels, labelled.problem.codes)
    if agreed is not None:
        yield _agreed("people", "the coach and people", agreed, sql.LABELS)
    for found in differences(labelled):
        yield _apart("people", found, beside_sql.people(found))
    people = corrected_mean(labelled)
    if people is not None:
        yield Figure(
            kind="people",
            subject="mean score people would give",
            estimate=people.value,
            low=people.low,
            high=people.high,
            actions=people.labels,
            sql=sql.PEOPLES_MEAN,
            detail={"trust": people.trust},
        )


def _apart(kind: str, found: Difference | TooFewLabels, query: str) -> Figure:
    """The coach's scores minus the others', of one domain; without them, what lacks labels."""
    figure = Figure(
        kind=kind,
        subject="the coach",
        against="people",
        stratum=found.domain.name,
        actions=found.labels,
        sql=query,
        detail={"of_actions": found.actions},
    )
    if isinstance(found, TooFewLabels):
        short = {"fewer_than_2_labels": ", ".join(found.cells)}
        return replace(figure, verdict="too few labels", detail={**figure.detail, **short})
    detail = {**figure.detail, "trust": found.trust, "of_problems": found.problems}
    return measured(replace(figure, detail=detail), found.estimate)


def _agreed(kind: str, subject: str, found: Agreement, query: str) -> Figure:
    return Figure(
        kind=kind,
        subject=subject,
        estimate=found.alpha,
        unit="Krippendorff's alpha",
        low=found.low,
        high=found.high,
        actions=found.actions,
        sql=query,
        detail={"kappa": found.kappa, "difference": found.difference},
    )


def measured(figure: Figure, estimate: Estimate) -> Figure:
    """The figure with the estimate's value, interval and, unless it has one, p-value."""
    low, high = estimate.interval()
    p_value = estimate.p_value if figure.p_value is None else figure.p_value
    return replace(figure, estimate=estimate.value, low=low, high=high, p_value=p_value)
