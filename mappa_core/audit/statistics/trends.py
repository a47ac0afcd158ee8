"""Changes over a run: scores that rise where success does not, and types whose success grows.

    divergence   change of score / 10 - success
    growth       change of success on one task type, less its change on the others

Each is a regression on the iteration, from the first to the last, with problems as clusters.
"""

from dataclasses import dataclass

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.design import scaled
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
    """How much score / 10 rose above success: above 0, a coach is being gamed."""

    agent: str
    task_type: str


def divergence(agent: str, task_type: str, sums: ClusterSums, *, span: int) -> Divergence | None:
    """The divergence of one agent on one task type; None below two problems or two iterations.

    Args:
        agent: Whose scores.
        task_type: Of its problems.
        sums: Of score / 10 - success on (1, iteration), by problem.
        span: Iterations from the first to the last.
    """
    if len(sums.counts) < 2:
        return None
    fitted, weights = fit(sums), np.array([0.0, float(span)])
    if not estimable(fitted, weights):
        return None
    rows = f"{sql.JUDGED} AND agent = {sql.quoted(agent)} AND task_type = {sql.quoted(task_type)}"
    weighted = row_weights(fitted, weights, ("1", "iteration"))
    return Divergence(
        agent=agent,
        task_type=task_type,
        estimate=contrast(fitted, weights),
        actions=int(sums.counts.sum()),
        problems=len(sums.counts),
        sql=sql.effect(weighted, "score / 10 - success::int", rows),
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
