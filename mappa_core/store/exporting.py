"""Every action of a run with what was made of it, read as a stream."""

from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import Connection, and_, select

from mappa_core.core.records.runs import ExportedAction
from mappa_core.store.episode_mapping import float32, messages
from mappa_core.store.mapping import Row
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
    trains = and_(COACH_SCORE.c.action_id == ACTION.c.id, COACH_SCORE.c.trained)
    query = (
        select(ACTION, POLICY_VERSION.c.step, EPISODE.c.phase, EPISODE.c.iteration)
        .add_columns(EPISODE.c.rollout_index, EPISODE.c.problem_id, PROBLEM.c.task_type)
        .add_columns(COACH_SCORE.c.score, COACH_SCORE.c.rationale, COACH_SCORE.c.unscored_reason)
        .add_columns(COACH.c.coach, OUTCOME.c.success)
        .add_columns(UPDATE_ACTION.c.advantage, UPDATE_ACTION.c.weight, UPDATE_ACTION.c.left_out)
        .join(EPISODE, EPISODE.c.id == ACTION.c.episode_id)
        .join(PROBLEM, PROBLEM.c.id == EPISODE.c.problem_id)
        .join(POLICY_VERSION, POLICY_VERSION.c.id == ACTION.c.policy_version_id)
        .outerjoin(COACH_SCORE, trains)
        .outerjoin(COACH, COACH.c.id == COACH_SCORE.c.coach_id)
        .outerjoin(OUTCOME, OUTCOME.c.episode_id == EPISODE.c.id)
        .outerjoin(UPDATE_ACTION, UPDATE_ACTION.c.action_id == ACTION.c.id)
        .where(EPISODE.c.run_id == run_id)
        .order_by(EPISODE.c.phase.desc(), EPISODE.c.iteration, EPISODE.c.problem_id)
        .order_by(EPISODE.c.rollout_index, ACTION.c.turn_index)
    )
    streamed = connection.execution_options(yield_per=ROWS_AT_ONCE)
    for row in streamed.execute(query).mappings():
        yield _to_exported(row)


def _to_exported(row: Row) -> ExportedAction:
    return ExportedAction(
        action_id=row["id"],
        episode_id=row["episode_id"],
        problem_id=row["problem_id"],
        phase=row["phase"],
        iteration=row["iteration"],
        rollout_index=row["rollout_index"],
        turn_index=row["turn_index"],
        agent=row["agent"],
        policy_step=row["step"],
        task_type=row["task_type"],
        messages=messages(row["messages"]),
        text=row["text"],
        prompt_token_ids=tuple(row["prompt_token_ids"]),
        token_ids=tuple(row["token_ids"]),
        logprobs=float32(row["logprobs"]),
        coach=row["coach"],
        score=row["score"],
        rationale=row["rationale"],
        unscored_reason=row["unscored_reason"],
        success=row["success"],
        advantage=row["advantage"],
        weight=row["weight"],
        left_out=row["left_out"],
    )
