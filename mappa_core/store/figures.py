"""Sums over many episodes, computed by Postgres: an iteration's numbers, what coaches cost."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select

from mappa_core.core.records.episodes import Phase, StopReason
from mappa_core.core.records.runs import AgentFigures, IterationFigures
from mappa_core.core.records.scores import Spending
from mappa_core.store.database import Repository, transaction
from mappa_core.store.mapping import record_of
from mappa_core.store.scores import TRAINS
from mappa_core.store.tables import ACTION, COACH_SCORE, EPISODE, OUTCOME, TOOL_RESULT


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
        counts = connection.execute(_episode_counts(within)).mappings().one()
        agents = connection.execute(_agent_counts(within)).mappings().all()
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
        )

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
            .join(ACTION)
            .join(EPISODE)
            .where(EPISODE.c.run_id == run_id, columns.request.is_not(None))
        )
        return record_of(Spending, connection.execute(query).mappings().one())

    @transaction
    def get_coach_costs(self, connection: Connection, run_id: UUID) -> Mapping[int, float]:
        """Dollars that the coaches took for each training iteration; none where they are free."""
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
        .outerjoin(COACH_SCORE, TRAINS)
        .where(within)
        .group_by(ACTION.c.agent)
        .order_by(func.min(ACTION.c.turn_index), ACTION.c.agent)
    )
