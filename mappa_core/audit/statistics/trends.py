"""Changes over a run: scores that rise where success does not, and types whose success grows.

    divergence   change of success at equal score, beside that of the score at equal outcome
    growth       change of success on one task type, less its change on the others

Each is a regression on the iteration, from the first to the last, with problems as clusters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.calibration import Scored, bet_on_calibration
from mappa_core.audit.statistics.drift import Wealth
from mappa_core.audit.statistics.layout import scaled
from mappa_core.audit.statistics.regression import (
    ClusterSums,
    Estimate,
    cluster_sums,
    contrast,
    estimable,
    fit,
    row_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How much something changed from the first to the last iteration."""

    estimate: Estimate
    actions: int
    problems: int
    sql: str
    """Gives the estimate from the views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence(Trend):
    """How far scores ceased to mean what they meant; the estimate is success at equal score.

    Where it falls while the score at equal outcome rises, the coach is being gamed. Where both fall
    or both rise, so does the work.
    """

    agent: str
    task_type: str
    score: Estimate
    """Change of the score at equal outcome, in points."""
    bets: Wealth
    """Of `calibration`; by iteration in `iterations`."""
    iterations: tuple[int, ...]

    @property
    def since(self) -> int | None:
        """The iteration it set in; None before an alarm."""
        return None if self.bets.onset is None else self.iterations[self.bets.onset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What both regressions of one agent and task type need, by problem."""

    success: ClusterSums
    """Of success on (1, score, iteration)."""
    score: ClusterSums
    """Of the score on (1, success, iteration)."""


def divergence(
    cell: tuple[str, str], sums: Moments, rounds: Sequence[Scored], *, cells: int
) -> Divergence | None:
    """The divergence of one agent on one task type; None below two problems or two iterations.

    Args:
        cell: The agent and the task type.
        sums: Of its actions.
        rounds: What is bet on, by iteration.
        cells: Agents and types of the run, which share the chance of a false alarm.
    """
    if len(sums.success.counts) < 2:
        return None
    iterations = tuple(one.iteration for one in rounds)
    weights = np.array([0.0, 0.0, float(max(iterations) - min(iterations))])
    fitted, reverse = fit(sums.success), fit(sums.score)
    if not (estimable(fitted, weights) and estimable(reverse, weights)):
        return None
    weighted = row_weights(fitted, weights, ("1", "score", "iteration"))
    return Divergence(
        agent=cell[0],
        task_type=cell[1],
        estimate=contrast(fitted, weights),
        score=contrast(reverse, weights),
        bets=bet_on_calibration(rounds, cells),
        iterations=iterations,
        actions=int(sums.success.counts.sum()),
        problems=len(sums.success.counts),
        sql=sql.effect(weighted, "success::int", sql.judged_of(*cell)),
    )


def growth(frame: Frame, code: int) -> Trend | None:
    """How much faster success changes on one task type than on the others.

    Args:
        frame: The actions.
        code: Of the task type.

    Returns:
        The difference of the changes, or None where the data cannot tell.
    """
    frame = frame.take(~np.isnan(frame.success))
    if frame.problem_count < 2:
        return None
    favoured = (frame.task_type.codes == code).astype(float)
    member = f"(task_type = {sql.quoted(frame.task_type.names[code])})::int"
    time, when = scaled(frame.iteration)
    columns = np.column_stack([np.ones(len(frame)), favoured, time, favoured * time])
    fitted = fit(cluster_sums(columns, frame.success, frame.problem.codes))
    weights = np.array([0.0, 0.0, 0.0, 1.0])
    if not estimable(fitted, weights):
        return None
    weighted = row_weights(fitted, weights, ("1", member, when, f"{member} * {when}"))
    rows = f"{sql.TRAINED} AND success IS NOT NULL"
    return Trend(
        estimate=contrast(fitted, weights),
        actions=len(frame),
        problems=frame.problem_count,
        sql=sql.effect(weighted, "success::int", rows),
    )
