"""Numbers over many episodes, summed up by Postgres."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, select

from mappa_core.core.records.episodes import Phase, StopReason
from mappa_core.core.records.runs import (
    AgentFigures,
    EpisodeSummary,
    HeldOutEpisode,
    IterationFigures,
)
from mappa_core.core.records.scores import Spending
from mappa_core.store.tables import ACTION, COACH_SCORE, EPISODE, OUTCOME, PROBLEM, TOOL_RESULT


def iteration_figures(
    connection: Connection, run_id: UUID, phase: Phase, iteration: int
) -> IterationFigures:
    """The numbers of one iteration's episodes, failed ones included in what was spent.

    An action counts as unscored where the coach was asked and gave no score; held-out actions,
    which no coach reads, do not.
    """
    within = _within(run_id, phase, iteration)
    counts = connection.execute(_episode_counts(within)).one()
    agents = connection.execute(_agent_counts(within)).all()
    return IterationFigures(
        phase=phase,
        iteration=iteration,
        episodes=counts.episodes,
        failed=counts.failed,
        successes=counts.successes,
        agents=tuple(_agent_figures(row) for row in agents),
        seconds_by_activity={
            "engine": sum(row.engine_seconds for row in agents),
            "sandbox": sum(row.sandbox_seconds for row in agents),
            "coach": sum(row.coach_seconds for row in agents),
        },
    )


def held_out_episodes(
    connection: Connection, run_id: UUID, step: int
) -> tuple[HeldOutEpisode, ...]:
    """The closed held-out episodes of one policy step, by problem and rollout."""
    columns = OUTCOME.c
    query = (
        select(
            EPISODE.c.problem_id,
            func.coalesce(columns.success, False).label("success"),
            columns.episode_id.is_(None).label("failed"),
            columns.answer,
            columns.metric,
            columns.value,
            columns.skill,
        )
        .outerjoin(OUTCOME)
        .where(_within(run_id, "held_out", step), EPISODE.c.stop_reason.is_not(None))
        .order_by(EPISODE.c.problem_id, EPISODE.c.rollout_index)
    )
    return tuple(HeldOutEpisode(**row) for row in connection.execute(query).mappings())


def episode_summaries(connection: Connection, run_id: UUID) -> tuple[EpisodeSummary, ...]:
    """Every closed episode of a run in a line, by phase, iteration, problem and rollout."""
    trains = and_(COACH_SCORE.c.action_id == ACTION.c.id, COACH_SCORE.c.trained)
    columns = EPISODE.c
    query = (
        select(columns.id, columns.phase, columns.iteration, PROBLEM.c.task_type, OUTCOME.c.success)
        .add_columns(func.avg(COACH_SCORE.c.score).label("mean_score"))
        .select_from(EPISODE)
        .join(PROBLEM)
        .outerjoin(OUTCOME)
        .outerjoin(ACTION, ACTION.c.episode_id == columns.id)
        .outerjoin(COACH_SCORE, trains)
        .where(columns.run_id == run_id, columns.stop_reason.is_not(None))
        .group_by(columns.id, PROBLEM.c.id, OUTCOME.c.episode_id)
        .order_by(columns.phase, columns.iteration, columns.problem_id, columns.rollout_index)
    )
    return tuple(EpisodeSummary(**row) for row in connection.execute(query).mappings())


def coach_spending(connection: Connection, run_id: UUID) -> Spending:
    """What the coaches of a run have taken: all its rows, trained on or not."""
    columns = COACH_SCORE.c
    tokens = func.coalesce(columns.prompt_tokens, 0) + func.coalesce(columns.reply_tokens, 0)
    query = (
        select(
            func.coalesce(func.sum(columns.attempts), 0).label("calls"),
            func.coalesce(func.sum(tokens + func.coalesce(columns.thought_tokens, 0)), 0).label(
                "tokens"
            ),
            func.coalesce(func.sum(columns.cost_usd), 0.0).label("cost_usd"),
        )
        .select_from(COACH_SCORE)
        .join(ACTION)
        .join(EPISODE)
        .where(EPISODE.c.run_id == run_id, columns.request.is_not(None))
    )
    row = connection.execute(query).one()
    return Spending(calls=row.calls, tokens=row.tokens, cost_usd=row.cost_usd)


def coach_costs(connection: Connection, run_id: UUID) -> Mapping[int, float]:
    """Dollars by training iteration, of all scores that had a price."""
    dollars = func.sum(COACH_SCORE.c.cost_usd)
    query = (
        select(EPISODE.c.iteration, dollars.label("cost_usd"))
        .select_from(COACH_SCORE)
        .join(ACTION)
        .join(EPISODE)
        .where(EPISODE.c.run_id == run_id, EPISODE.c.phase == "train")
        .group_by(EPISODE.c.iteration)
        .having(dollars > 0)
    )
    return {row.iteration: row.cost_usd for row in connection.execute(query)}


def _within(run_id: UUID, phase: str, iteration: int) -> ColumnElement[bool]:
    columns = EPISODE.c
    return and_(columns.run_id == run_id, columns.phase == phase, columns.iteration == iteration)


def _episode_counts(within: ColumnElement[bool]) -> Select[tuple[int, int, int]]:
    everything = func.count()
    return (
        select(
            everything.label("episodes"),
            everything.filter(EPISODE.c.stop_reason == StopReason.FAILED.value).label("failed"),
            everything.filter(OUTCOME.c.success).label("successes"),
        )
        .select_from(EPISODE)
        .outerjoin(OUTCOME)
        .where(within, EPISODE.c.stop_reason.is_not(None))
    )


def _agent_counts(within: ColumnElement[bool]) -> Select[Any]:
    trains = and_(COACH_SCORE.c.action_id == ACTION.c.id, COACH_SCORE.c.trained)
    return (
        select(
            ACTION.c.agent,
            func.count().label("actions"),
            func.count(COACH_SCORE.c.unscored_reason).label("unscored"),
            func.avg(COACH_SCORE.c.score).label("mean_score"),
            func.sum(func.cardinality(ACTION.c.token_ids)).label("tokens"),
            func.count(TOOL_RESULT.c.action_id).label("tool_calls"),
            func.sum(ACTION.c.seconds).label("engine_seconds"),
            func.coalesce(func.sum(TOOL_RESULT.c.seconds), 0.0).label("sandbox_seconds"),
            func.coalesce(func.sum(COACH_SCORE.c.seconds), 0.0).label("coach_seconds"),
        )
        .select_from(ACTION)
        .join(EPISODE)
        .outerjoin(TOOL_RESULT, TOOL_RESULT.c.action_id == ACTION.c.id)
        .outerjoin(COACH_SCORE, trains)
        .where(within)
        .group_by(ACTION.c.agent)
        .order_by(func.min(ACTION.c.turn_index), ACTION.c.agent)
    )


def _agent_figures(row: Row[Any]) -> AgentFigures:
    return AgentFigures(
        agent=row.agent,
        actions=row.actions,
        unscored=row.unscored,
        mean_score=row.mean_score,
        tokens=row.tokens,
        tool_calls=row.tool_calls,
    )
