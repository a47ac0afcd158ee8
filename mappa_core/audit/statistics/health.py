"""Can these scores teach at all? Their spread, their ceiling, and what is missing."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.statistics.regression import (
    ClusterSums,
    Estimate,
    cluster_sums,
    contrast,
    estimable,
    fit,
)
from mappa_core.audit.writing import Draft, measured

LOWEST, HIGHEST = 0.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The distribution of some scores."""

    actions: int
    mean: float
    deviation: float
    at_mode: float
    """Share that got the most frequent score; 1 teaches nothing."""
    mode: float
    at_ceiling: float
    """Share that got a 10."""
    entropy_bits: float
    """Of the distribution over half points; 21 equally frequent ones have 4.39 bits."""
    unparsed: float = 0.0
    """Share of all replies, of these and of the missing ones, that nobody could read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What unscored actions could hide: the gap between two groups at worst.

    Manski (1989): with nothing assumed about the missing, each is anything in [0, 10].
    """

    share: float
    share_others: float
    gap: float
    """Of the scores there are, in points."""
    lowest_gap: float
    highest_gap: float

    @property
    def possible_bias(self) -> float:
        """How far the gap could be from what it seems, in points."""
        return max(self.gap - self.lowest_gap, self.highest_gap - self.gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Whether scores rise where success does not: a coach that is being gamed."""

    agent: str
    task_type: str
    estimate: Estimate
    """Change of (score / 10 - success) from the first to the last iteration."""
    actions: int
    problems: int
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much a quantity changed over some iterations."""

    estimate: Estimate
    weights: Floats
    """(2,): what each value of the quantity counts, times (1, iteration)."""


def health(frame: Frame) -> Health | None:
    """Describe the scores of some actions; None where there are none."""
    scores = frame.score[~np.isnan(frame.score)]
    if not len(scores):
        return None
    values, counts = np.unique(np.round(2 * scores) / 2, return_counts=True)
    return Health(
        actions=len(scores),
        mean=float(scores.mean()),
        deviation=float(scores.std(ddof=1)) if len(scores) > 1 else 0.0,
        at_mode=float(counts.max() / len(scores)),
        mode=float(values[counts.argmax()]),
        at_ceiling=float((scores >= HIGHEST).mean()),
        entropy_bits=float(stats.entropy(counts, base=2)),
        unparsed=float(frame.unparsed.mean()),
    )


def missing(frame: Frame, code: int) -> Missing | None:
    """How much the unscored could change the gap of one task type to the others.

    Args:
        frame: All actions the coach was asked about, unscored ones included.
        code: Of the task type.

    Returns:
        None where either side has no scores.
    """
    member = frame.task_type.codes == code
    mine, others = frame.score[member], frame.score[~member]
    if np.isnan(mine).all() or np.isnan(others).all():
        return None
    (low, high), (other_low, other_high) = _bounds(mine), _bounds(others)
    return Missing(
        share=float(np.isnan(mine).mean()),
        share_others=float(np.isnan(others).mean()),
        gap=float(np.nanmean(mine) - np.nanmean(others)),
        lowest_gap=low - other_high,
        highest_gap=high - other_low,
    )


def divergences(frame: Frame) -> Iterator[Divergence]:
    """For each agent and task type, whether score and success go apart over the iterations."""
    frame = frame.judged()
    for agent in frame.agent.present():
        for task_type in frame.task_type.present():
            rows = frame.take((frame.agent.codes == agent) & (frame.task_type.codes == task_type))
            found = _trend(rows)
            if found is not None:
                yield divergence(
                    found,
                    agent=frame.agent.names[agent],
                    task_type=frame.task_type.names[task_type],
                    actions=len(rows),
                    problems=len(rows.problem.present()),
                )


def divergence(
    found: Change, *, agent: str, task_type: str, actions: int, problems: int
) -> Divergence:
    """A change of score / 10 minus success, with the query that gives it."""
    rows = f"{sql.JUDGED} AND agent = {sql.quoted(agent)} AND task_type = {sql.quoted(task_type)}"
    weighted = sql.WeightedSum(weights=found.weights, columns=("1", "iteration"))
    return Divergence(
        agent=agent,
        task_type=task_type,
        estimate=found.estimate,
        actions=actions,
        problems=problems,
        sql=sql.effect(weighted, "score / 10 - success::int", rows),
    )


def _trend(rows: Frame) -> Change | None:
    if not len(rows):
        return None
    time = rows.iteration.astype(float)
    gap = rows.score / HIGHEST - rows.success
    sums = cluster_sums(np.column_stack([np.ones(len(rows)), time]), gap, rows.problem.codes)
    return change(sums, int(rows.iteration.max() - rows.iteration.min()))


def change(sums: ClusterSums, span: int) -> Change | None:
    """How much a quantity changes over `span` iterations, from sums of it on (1, iteration).

    None below two problems or two iterations.
    """
    if len(sums.counts) < 2:
        return None
    fitted, weights = fit(sums), np.array([0.0, float(span)])
    if not estimable(fitted, weights):
        return None
    return Change(estimate=contrast(fitted, weights), weights=fitted.bread @ weights[fitted.used])


def _bounds(scores: Floats) -> tuple[float, float]:
    """The mean if every missing score were the lowest, and the highest."""
    absent = np.isnan(scores)
    return (
        float(np.where(absent, LOWEST, scores).mean()),
        float(np.where(absent, HIGHEST, scores).mean()),
    )


def health_findings(frame: Frame) -> Iterator[Draft]:
    """How the scores look, type by type, and whether success goes along with them."""
    for code in frame.task_type.present():
        rows = frame.take(frame.task_type.codes == code)
        yield from _described(frame.task_type.names[code], rows)
        yield from _unscored(frame, code, rows)
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


def _described(name: str, rows: Frame) -> Iterator[Draft]:
    found = health(rows)
    if found is not None:
        yield Draft(
            kind="health",
            subject=name,
            estimate=found.at_mode,
            unit=f"share at the mode ({found.mode:g})",
            actions=found.actions,
            problems=len(rows.problem.present()),
            sql=sql.health(f"task_type = {sql.quoted(name)}"),
            detail={
                "mean": found.mean,
                "deviation": found.deviation,
                "at_ceiling": found.at_ceiling,
                "entropy_bits": found.entropy_bits,
                "unparsed": found.unparsed,
            },
        )


def _unscored(frame: Frame, code: int, rows: Frame) -> Iterator[Draft]:
    found = missing(frame, code)
    if found is not None:
        name = frame.task_type.names[code]
        yield Draft(
            kind="unscored",
            subject=name,
            against="the other types",
            estimate=found.share,
            unit="share without a score",
            actions=len(rows),
            problems=len(rows.problem.present()),
            sql=sql.unscored(name),
            detail={
                "gap": found.gap,
                "lowest_gap": found.lowest_gap,
                "highest_gap": found.highest_gap,
                "possible_bias": found.possible_bias,
            },
        )
