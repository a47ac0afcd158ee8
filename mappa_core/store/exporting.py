"""Every action of a run with what was made of it, read as a stream."""

from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import Connection, select

from mappa_core.core.records.runs import ExportedAction
from mappa_core.store.mapping import record_of
from mappa_core.store.scores import TRAINS
from mappa_core.store.tables import (
    ACTION,
    COACH,
    COACH_SCORE,
    EPISODE,
    OUTCOME,
    POLICY_VERSION,
    PROBLEM,
    UPDATE_ACTION,
)

ROWS_AT_ONCE = 500


def exported_actions(connection: Connection, run_id: UUID) -> Iterator[ExportedAction]:
    """A run's actions in the order they were asked for, each with its training score."""
    query = (
        select(ACTION.c.id.label("action_id"), ACTION.c.episode_id, ACTION.c.turn_index)
        .add_columns(ACTION.c.agent, ACTION.c.messages, ACTION.c.text)
        .add_columns(ACTION.c.prompt_token_ids, ACTION.c.token_ids, ACTION.c.logprobs)
        .add_columns(ACTION.c.given)
        .add_columns(POLICY_VERSION.c.step.label("policy_step"))
        .add_columns(EPISODE.c.phase, EPISODE.c.iteration)
        .add_columns(EPISODE.c.rollout_index, EPISODE.c.problem_id, PROBLEM.c.task_type)
        .add_columns(COACH_SCORE.c.score, COACH_SCORE.c.rationale, COACH_SCORE.c.unscored_reason)
        .add_columns(COACH.c.coach, OUTCOME.c.success)
        .add_columns(UPDATE_ACTION.c.advantage, UPDATE_ACTION.c.weight, UPDATE_ACTION.c.left_out)
        .join(EPISODE, EPISODE.c.id == ACTION.c.episode_id)
        .join(PROBLEM, PROBLEM.c.id == EPISODE.c.problem_id)
        .join(POLICY_VERSION, POLICY_VERSION.c.id == ACTION.c.policy_version_id)
        .outerjoin(COACH_SCORE, TRAINS)
        .outerjoin(COACH, COACH.c.id == COACH_SCORE.c.coach_id)
        .outerjoin(OUTCOME, OUTCOME.c.episode_id == EPISODE.c.id)
        .outerjoin(UPDATE_ACTION, UPDATE_ACTION.c.action_id == ACTION.c.id)
        .where(EPISODE.c.run_id == run_id)
        .order_by(EPISODE.c.phase.desc(), EPISODE.c.iteration, EPISODE.c.problem_id)
        .order_by(EPISODE.c.rollout_index, ACTION.c.turn_index)
    )
    streamed = connection.execution_options(yield_per=ROWS_AT_ONCE)
    for row in streamed.execute(query).mappings():
        yield record_of(ExportedAction, row)
