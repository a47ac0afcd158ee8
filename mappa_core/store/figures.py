"""Sums over many episodes, computed by Postgres: an iteration's numbers, a coach's spending."""

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, func, select

from mappa_core.core.records.episodes import Phase, StopReason
from mappa_core.core.records.runs import AgentFigures, IterationFigures
from mappa_core.core.records.scores import Spending
from mappa_core.store.database import Repository, transaction
from mappa_core.store.mapping import Row, record_of
from mappa_core.store.scores import OF_ACTION
from mappa_core.store.tables import ACTION, COACH_SCORE, EPISODE, OUTCOME, TOOL_RESULT

_IterationKey: TypeAlias = tuple[Phase, int]
_KEY_COLUMNS = (EPISODE.c.phase, EPISODE.c.iteration)
_NOTHING: Row = {"episodes": 0, "failed": 0, "successes": 0}


class Figures(Repository):
    """Reads sums."""

    @transaction
    def get_iteration_figures(
        self, connection: Connection, run_id: UUID, phase: Phase, iteration: int
    ) -> IterationFigures:
        """The numbers of one iteration's episodes, failed ones included in what was spent.

        An action counts as unscored where the coach was asked and gave no score; held-out actions,
        which no coach reads, do not.
        """
        columns = EPISODE.c
        within = and_(
            columns.run_id == run_id, columns.phase == phase, columns.iteration == iteration
        )
        found = _iteration_figures(connection, within)
        return found.get((phase, iteration)) or _figures((phase, iteration), _NOTHING, ())

    @transaction
    def list_iteration_figures(
        self, connection: Connection, run_id: UUID
    ) -> tuple[IterationFigures, ...]:
        """The numbers of all iterations of a run that have closed episodes, by phase and number."""
        found = _iteration_figures(connection, EPISODE.c.run_id == run_id)
        return tuple(found[key] for key in sorted(found) if found[key].episodes)

    @transaction
    def get_coach_spending(self, connection: Connection, run_id: UUID) -> Spending:
        """What models that coach a run have taken so far, scores that did not train included."""
        columns = COACH_SCORE.c
        kinds = (columns.prompt_tokens, columns.reply_tokens, columns.thought_tokens)
        tokens = sum((func.coalesce(kind, 0) for kind in kinds[1:]), func.coalesce(kinds[0], 0))
        query = (
            select(
                func.coalesce(func.sum(columns.attempts), 0).label("calls"),
                func.coalesce(func.sum(tokens), 0).label("tokens"),
                func.coalesce(func.sum(columns.cost_usd), 0.0).label("cost_usd"),
            )
            .select_from(COACH_SCORE)
            .join(EPISODE, EPISODE.c.id == columns.episode_id)
            .where(EPISODE.c.run_id == run_id, columns.request.is_not(None))
        )
        return record_of(Spending, connection.execute(query).mappings().one())


def _iteration_figures(
    connection: Connection, within: ColumnElement[bool]
) -> dict[_IterationKey, IterationFigures]:
    """The numbers of each iteration that has such episodes, closed or not."""
    agents: dict[_IterationKey, list[RowMapping]] = {}
    for row in connection.execute(_agent_counts(within)).mappings():
        agents.setdefault((row["phase"], row["iteration"]), []).append(row)
    counts = {
        (row["phase"], row["iteration"]): row
        for row in connection.execute(_episode_counts(within)).mappings()
    }
    return {
        key: _figures(key, counts.get(key, _NOTHING), agents.get(key, ()))
        for key in agents.keys() | counts.keys()
    }


def _figures(key: _IterationKey, counts: Row, agents: Sequence[Row]) -> IterationFigures:
    phase, iteration = key
    seconds = {
        activity: sum(row[f"{activity}_seconds"] for row in agents)
        for activity in ("engine", "sandbox", "coach")
    }
    return record_of(
        IterationFigures,
        counts,
        phase=phase,
        iteration=iteration,
        agents=tuple(record_of(AgentFigures, row) for row in agents),
        seconds_by_activity=seconds,
        cost_usd=sum(row["cost_usd"] for row in agents),
    )


def _episode_counts(within: ColumnElement[bool]) -> Select[Any]:
    everything = func.count()
    return (
        select(
            *_KEY_COLUMNS,
            everything.label("episodes"),
            everything.filter(EPISODE.c.stop_reason == StopReason.FAILED.value).label("failed"),
            everything.filter(OUTCOME.c.success).label("successes"),
        )
        .select_from(EPISODE)
        .outerjoin(OUTCOME)
        .where(within, EPISODE.c.stop_reason.is_not(None))
        .group_by(*_KEY_COLUMNS)
    )


def _agent_counts(within: ColumnElement[bool]) -> Select[Any]:
    # Indexes hold all columns of this query: a million wide rows would take seconds to read.
    action = _scored_actions(within).subquery("scored_action")
    columns, everything = action.c, func.count()
    return (
        select(columns.phase, columns.iteration, columns.agent)
        .add_columns(everything.label("actions"))
        .add_columns(func.count(columns.score).label("scored"))
        .add_columns(
            everything.filter(columns.trained, columns.score.is_(None)).label("unscored"),
            func.avg(columns.score).label("mean_score"),
            func.sum(columns.tokens).label("tokens"),
            func.count(TOOL_RESULT.c.action_id).label("tool_calls"),
            func.sum(columns.seconds).label("engine_seconds"),
            func.coalesce(func.sum(TOOL_RESULT.c.seconds), 0.0).label("sandbox_seconds"),
            func.coalesce(func.sum(columns.coach_seconds), 0.0).label("coach_seconds"),
            func.coalesce(func.sum(columns.cost_usd), 0.0).label("cost_usd"),
        )
        .select_from(action)
        .outerjoin(TOOL_RESULT, TOOL_RESULT.c.action_id == columns.id)
        .group_by(columns.phase, columns.iteration, columns.agent)
        .order_by(func.min(columns.turn_index), columns.agent)
    )


def _scored_actions(within: ColumnElement[bool]) -> Select[Any]:
    """Each action with the score that trains it and what all of its scores cost."""
    score = COACH_SCORE.c
    return (
        select(*_KEY_COLUMNS, *ACTION.c["id", "agent", "turn_index", "tokens", "seconds"])
        .add_columns(
            func.bool_or(score.trained).label("trained"),
            func.max(score.score).filter(score.trained).label("score"),
            func.max(score.seconds).filter(score.trained).label("coach_seconds"),
            func.sum(score.cost_usd).label("cost_usd"),
        )
        .select_from(ACTION)
        .join(EPISODE)
        .outerjoin(COACH_SCORE, OF_ACTION)
        .where(within)
        .group_by(ACTION.c.id, EPISODE.c.id)
    )
