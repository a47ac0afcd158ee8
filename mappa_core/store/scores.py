"""Scores: what coaches said about actions, and the actions with the score that trains them."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from uuid import UUID

from sqlalchemy import Connection, and_, func, select, true, update

from mappa_core.core import ids
from mappa_core.core.records.episodes import FinishReason, StopReason
from mappa_core.core.records.scores import (
    CoachCall,
    CoachIdentity,
    CoachScore,
    ScoredAction,
    ScoreEntry,
    ScoreRange,
    Unscored,
)
from mappa_core.store.database import Repository, transaction
from mappa_core.store.insert import Rows, insert
from mappa_core.store.mapping import Row, Values, record_of, records_of, row_of
from mappa_core.store.tables import ACTION, COACH, COACH_SCORE, EPISODE, POLICY_VERSION

OF_ACTION = and_(
    COACH_SCORE.c.episode_id == ACTION.c.episode_id,
    COACH_SCORE.c.turn_index == ACTION.c.turn_index,
)
"""Joins each action to all of its scores."""
TRAINS = and_(OF_ACTION, COACH_SCORE.c.trained)
"""Joins each action to the one score that trains it."""

_TRUNCATED = (FinishReason.LENGTH.value, FinishReason.LENGTH_IN_THOUGHT.value)


class Scores(Repository):
    """Reads and writes scores."""

    @transaction
    def add_scores(self, connection: Connection, entries: Sequence[ScoreEntry]) -> None:
        """Add scores; a repeat of an id changes nothing.

        A training score takes the place of an unscored one, which stays as a row that did not
        train; a second real training score is refused.
        """
        trained = [entry for entry in entries if entry.trained]
        columns = COACH_SCORE.c
        connection.execute(
            update(COACH_SCORE)
            .where(
                columns.action_id.in_([entry.action_id for entry in trained]),
                columns.id.not_in([entry.id for entry in trained]),
                columns.trained,
                columns.score.is_(None),
            )
            .values(trained=False)
        )
        insert(connection, score_rows(entries))

    @transaction
    def scores_of_episode(self, connection: Connection, episode_id: UUID) -> tuple[ScoreEntry, ...]:
        """All scores of an episode's actions, in turn order, then as they were given."""
        query = (
            select(COACH_SCORE, *(column for column in COACH.c if column.name != "id"))
            .join(COACH)
            .where(COACH_SCORE.c.episode_id == episode_id)
            .order_by(COACH_SCORE.c.turn_index, COACH_SCORE.c.scored_at, COACH_SCORE.c.id)
        )
        return tuple(_to_entry(row) for row in connection.execute(query).mappings())

    @transaction
    def list_scored_actions(
        self, connection: Connection, run_id: UUID, agent: str | None, iteration: int
    ) -> tuple[ScoredAction, ...]:
        """One agent's actions of one training iteration, or all agents', in a fixed order.

        Failed episodes are left out; unscored actions come with `score=None`.
        """
        columns = ACTION.c
        query = (
            select(columns.id.label("action_id"), columns.episode_id, columns.turn_index)
            .add_columns(columns.agent)
            .add_columns(columns.prompt_token_ids, columns.token_ids, columns.logprobs)
            .add_columns(columns.temperature, columns.given)
            .add_columns(columns.finish_reason.in_(_TRUNCATED).label("truncated"))
            .add_columns(EPISODE.c.problem_id, EPISODE.c.rollout_index)
            .add_columns(POLICY_VERSION.c.step.label("policy_step"))
            .add_columns(COACH_SCORE.c.id.label("score_id"), COACH_SCORE.c.score)
            .select_from(ACTION)
            .join(EPISODE)
            .join(POLICY_VERSION, POLICY_VERSION.c.id == columns.policy_version_id)
            .outerjoin(COACH_SCORE, TRAINS)
            .where(
                EPISODE.c.run_id == run_id,
                EPISODE.c.phase == "train",
                EPISODE.c.iteration == iteration,
                # Not true of an episode that still runs either.
                EPISODE.c.stop_reason != StopReason.FAILED.value,
                columns.agent == agent if agent is not None else true(),
            )
            .order_by(EPISODE.c.problem_id, EPISODE.c.rollout_index, columns.turn_index)
        )
        return records_of(ScoredAction, connection.execute(query))

    @transaction
    def list_score_ranges(
        self, connection: Connection, run_id: UUID, iteration: int
    ) -> tuple[ScoreRange, ...]:
        """The scored actions of one training iteration, in a fixed order."""
        score = COACH_SCORE.c.score
        highest = func.max(score)
        trained = highest.filter(COACH_SCORE.c.trained)
        query = (
            select(ACTION.c.episode_id, ACTION.c.turn_index)
            .add_columns(func.coalesce(trained, highest).label("trained"))
            .add_columns(func.min(score).label("lowest"), highest.label("highest"))
            .select_from(ACTION)
            .join(EPISODE)
            .join(COACH_SCORE, OF_ACTION)
            .where(EPISODE.c.run_id == run_id, EPISODE.c.phase == "train")
            .where(EPISODE.c.iteration == iteration, score.is_not(None))
            .group_by(ACTION.c.id, EPISODE.c.id)
            .order_by(EPISODE.c.problem_id, EPISODE.c.rollout_index, ACTION.c.turn_index)
        )
        return records_of(ScoreRange, connection.execute(query))


def score_rows(entries: Iterable[ScoreEntry]) -> Rows:
    """Scores, and the coaches that gave them."""
    given = tuple(entries)
    coaches = {entry.identity for entry in given}
    return {
        COACH: [row_of(COACH, identity, id=coach_id(identity)) for identity in coaches],
        COACH_SCORE: [_entry_row(entry) for entry in given],
    }


@cache
def coach_id(identity: CoachIdentity) -> UUID:
    """The id of a coach with its model and rubric."""
    return ids.content_id(
        "coach",
        identity.coach,
        identity.model,
        identity.model_version,
        identity.rubric_version,
        identity.rubric_sha256,
    )


_OF_EVERY_CALL = {field.name for field in fields(CoachCall)}
_JUDGEMENT: Values = dict.fromkeys(
    "score" if field.name == "value" else field.name
    for field in fields(CoachScore)
    if field.name not in _OF_EVERY_CALL
)
"""The columns that a score has and an absence has not; a new field of the record is one of them."""
_ABSENCE = dict.fromkeys(("unscored_reason", "unscored_detail"))


def _entry_row(entry: ScoreEntry) -> Values:
    """The row of one score, or of the reason there is none; both have the same columns."""
    score = entry.score
    if isinstance(score, CoachScore):
        other: Values = {**_ABSENCE, "score": score.value}
    else:
        other = {**_JUDGEMENT, "unscored_reason": score.reason, "unscored_detail": score.detail}
    other |= {"coach_id": coach_id(entry.identity), "answered_version": score.model_version}
    return row_of(COACH_SCORE, entry, score, action_id=entry.action_id, **other)


def _to_entry(row: Row) -> ScoreEntry:
    """The score of one row of `coach_score` joined to `coach`."""
    # The row's `model_version` is the coach's; what answered has a column of its own.
    call: Values = {"model_version": row["answered_version"], "flags": tuple(row["flags"] or ())}
    if row["score"] is None:
        absence = {"reason": row["unscored_reason"], "detail": row["unscored_detail"]}
        score = record_of(Unscored, row, **call, **absence)
    else:
        if row["criteria"] is None:
            call["criteria"] = ()
        score = record_of(CoachScore, row, **call, value=row["score"])
    return record_of(ScoreEntry, row, identity=record_of(CoachIdentity, row), score=score)
