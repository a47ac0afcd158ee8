"""Episodes: a problem, its turns with what their code did, the outcome; and a line for each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, and_, func, or_, select, update
from sqlalchemy.dialects import postgresql

from mappa_core.core import ids
from mappa_core.core.errors import NotFound
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    Observation,
    Outcome,
    Phase,
    Problem,
    Turn,
)
from mappa_core.core.records.runs import EpisodeSummary
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.records.tools import Artifact, ToolResult
from mappa_core.store.database import Database, Repository, transaction
from mappa_core.store.group_commit import GroupCommit
from mappa_core.store.insert import Rows, insert, merged
from mappa_core.store.lookup import find_one, id_is
from mappa_core.store.mapping import Values, record_of, records_of, row_of
from mappa_core.store.scores import score_rows
from mappa_core.store.tables import (
    ACTION,
    ARTIFACT,
    ARTIFACT_USE,
    COACH_SCORE,
    EPISODE,
    OUTCOME,
    PROBLEM,
    TOOL_RESULT,
)

_TRAINING_SCORES = and_(COACH_SCORE.c.episode_id == EPISODE.c.id, COACH_SCORE.c.trained)
"""Joins each episode to the scores that train its actions."""


class Episodes(Repository):
    """Reads and writes episodes with all that belongs to them but their scores."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._group = GroupCommit(
            lambda rows: database.transaction(lambda connection: insert(connection, rows))
        )

    @transaction
    def add_problems(self, connection: Connection, problems: Sequence[Problem]) -> None:
        """Add problems that are not there yet."""
        insert(connection, {PROBLEM: [row_of(PROBLEM, problem) for problem in problems]})

    def open_episode(self, episode: Episode) -> Episode:
        """Add an episode, or return it with what was recorded before a crash."""
        (opened,) = self.open_episodes((episode,))
        return opened

    @transaction
    def open_episodes(
        self, connection: Connection, episodes: Sequence[Episode]
    ) -> tuple[Episode, ...]:
        """Add episodes, all or none, or return them with what was recorded before a crash."""
        # Their end has a statement of its own.
        begun = [
            row_of(EPISODE, each, problem_id=each.problem.id, stop_reason=None, error=None)
            for each in episodes
        ]
        adding = postgresql.insert(EPISODE).on_conflict_do_nothing(index_elements=["id"])
        new = set(connection.execute(adding.returning(EPISODE.c.id), begun).scalars())
        return tuple(
            each if each.id in new else _read(connection, str(each.id)) for each in episodes
        )

    def add_turn(self, episode: Episode, turn: Turn) -> None:
        """Add one turn: its action and what its code did."""
        self._group.write(_turn_rows(episode, turn))

    def add_turns(self, turns: Sequence[tuple[Episode, Turn]]) -> None:
        """Add turns of several episodes, all or none."""
        self._group.write(merged([_turn_rows(episode, turn) for episode, turn in turns]))

    def close_episode(self, episode: Episode) -> None:
        """Write the stop reason and the outcome of a finished episode; the first stays."""
        self.close_episodes((episode,))

    @transaction
    def close_episodes(self, connection: Connection, episodes: Sequence[Episode]) -> None:
        """The same of several, all or none."""
        ended = [each for each in episodes if _close(connection, each) and each.outcome is not None]
        outcomes = [row_of(OUTCOME, each.outcome, episode_id=each.id) for each in ended]
        if outcomes:
            insert(connection, {OUTCOME: outcomes})

    @transaction
    def add_episodes(
        self, connection: Connection, episodes: Sequence[Episode], scores: Sequence[ScoreEntry]
    ) -> None:
        """Add finished episodes whole, with their problems and scores, all or none."""
        insert(connection, merged([*map(_episode_rows, episodes), score_rows(scores)]))

    @transaction
    def get_episode(self, connection: Connection, id_or_prefix: str) -> Episode:
        """One episode with all its turns.

        Raises:
            NotFound: None matches, or several do.
        """
        return _read(connection, id_or_prefix)

    @transaction
    def list_episodes(
        self,
        connection: Connection,
        run_id: UUID,
        phase: Phase | None = None,
        iteration: int | None = None,
    ) -> tuple[EpisodeSummary, ...]:
        """Every closed episode of a run in a line, by phase, iteration, problem and rollout.

        Only those of one phase and one iteration (held out: policy step) where they are given.
        """
        columns = EPISODE.c
        asked = {columns.phase: phase, columns.iteration: iteration}
        query = (
            _summaries()
            .where(columns.run_id == run_id)
            .where(*(column == value for column, value in asked.items() if value is not None))
            .order_by(columns.phase, columns.iteration, columns.problem_id, columns.rollout_index)
        )
        return records_of(EpisodeSummary, connection.execute(query))

    @transaction
    def list_extreme_episodes(
        self, connection: Connection, run_id: UUID, each: int
    ) -> tuple[EpisodeSummary, ...]:
        """The `each` lowest and the `each` highest scored closed episodes of a run, lowest first.

        An episode ranks by the mean of its training scores.
        """
        mean = func.avg(COACH_SCORE.c.score)
        ranked = (
            select(EPISODE.c.id, func.count().over().label("ranked"))
            .add_columns(func.row_number().over(order_by=(mean, EPISODE.c.id)).label("place"))
            .select_from(EPISODE)
            .join(COACH_SCORE, _TRAINING_SCORES)
            .where(EPISODE.c.run_id == run_id, EPISODE.c.stop_reason.is_not(None))
            .group_by(EPISODE.c.id)
            .having(mean.is_not(None))
            .subquery("ranked_episode")
        )
        place, last = ranked.c.place, ranked.c.ranked
        query = (
            _summaries()
            .join(ranked, ranked.c.id == EPISODE.c.id)
            .where(or_(place <= each, place > last - each))
            .group_by(place)
            .order_by(place)
        )
        return records_of(EpisodeSummary, connection.execute(query))

    @transaction
    def episodes_by_action(
        self, connection: Connection, run_id: UUID, phase: Phase
    ) -> dict[UUID, UUID]:
        """The episode of every action of a run's closed episodes of one phase."""
        query = (
            select(ACTION.c.id, ACTION.c.episode_id)
            .join_from(ACTION, EPISODE)
            .where(EPISODE.c.run_id == run_id, EPISODE.c.phase == phase)
            .where(EPISODE.c.stop_reason.is_not(None))
        )
        return dict(connection.execute(query).tuples().all())


def _summaries() -> Select[Any]:
    """Closed episodes in a line each."""
    columns = EPISODE.c
    measured = OUTCOME.c["success", "answer", "metric", "value", "skill", "figures"]
    return (
        select(columns.id, columns.phase, columns.iteration, columns.problem_id)
        .add_columns(PROBLEM.c.task_type, PROBLEM.c.attributes, *measured)
        .add_columns(func.avg(COACH_SCORE.c.score).label("mean_score"))
        .add_columns(func.count(COACH_SCORE.c.score).label("scored"))
        .select_from(EPISODE)
        .join(PROBLEM)
        .outerjoin(OUTCOME)
        .outerjoin(COACH_SCORE, _TRAINING_SCORES)
        .where(columns.stop_reason.is_not(None))
        .group_by(columns.id, PROBLEM.c.id, OUTCOME.c.episode_id)
    )


def _close(connection: Connection, episode: Episode) -> bool:
    """Write the end of an episode that has none; tell whether it had none."""
    closed = connection.execute(
        update(EPISODE)
        .where(EPISODE.c.id == episode.id, EPISODE.c.stop_reason.is_(None))
        .values(stop_reason=episode.stop_reason, error=episode.error, closed_at=func.now())
    )
    return closed.rowcount > 0


def _episode_rows(episode: Episode) -> Rows:
    """A finished episode: its row, its end, its problem and all its turns."""
    actions = [turn.action for turn in episode.turns]
    ends = [action.started_at + timedelta(seconds=action.seconds) for action in actions]
    finished = row_of(
        EPISODE,
        episode,
        problem_id=episode.problem.id,
        opened_at=min((action.started_at for action in actions), default=datetime.now(UTC)),
        closed_at=max(ends, default=datetime.now(UTC)),
    )
    rows: Rows = {PROBLEM: [row_of(PROBLEM, episode.problem)], EPISODE: [finished]}
    if episode.outcome is not None:
        rows[OUTCOME] = [row_of(OUTCOME, episode.outcome, episode_id=episode.id)]
    return merged([rows, *(_turn_rows(episode, turn) for turn in episode.turns)])


def _turn_rows(episode: Episode, turn: Turn) -> Rows:
    """An action, what its code did and the files it wrote and read."""
    action_id = ids.action_id(episode.id, turn.index)
    named = {"id": action_id, "episode_id": episode.id, "turn_index": turn.index}
    rows: Rows = {ACTION: [row_of(ACTION, turn.observation, turn.action, **named)]}
    if (result := turn.tool_result) is not None:
        known = result.read is not None
        rows[TOOL_RESULT] = [row_of(TOOL_RESULT, result, action_id=action_id, reads_known=known)]
        files = {file.sha256: file for file in (*result.written, *(result.read or ()))}
        rows[ARTIFACT] = [row_of(ARTIFACT, file) for file in files.values()]
        rows[ARTIFACT_USE] = _artifact_use_rows(action_id, result)
    return rows


def _artifact_use_rows(action_id: UUID, result: ToolResult) -> list[Values]:
    """One row per file the turn wrote, then per file it read, in order."""
    uses = [("written", file) for file in result.written]
    uses += [("read", file) for file in result.read or ()]
    return [
        row_of(ARTIFACT_USE, file, action_id=action_id, position=position, use=use)
        for position, (use, file) in enumerate(uses)
    ]


def _read(connection: Connection, id_or_prefix: str) -> Episode:
    row = find_one(connection, EPISODE, id_is(EPISODE.c.id, id_or_prefix))
    if row is None:
        raise NotFound(f"no episode {id_or_prefix!r} in the store")
    problem = select(PROBLEM).where(PROBLEM.c.id == row["problem_id"])
    outcome = select(OUTCOME).where(OUTCOME.c.episode_id == row["id"])
    measured = connection.execute(outcome).mappings().one_or_none()
    return record_of(
        Episode,
        row,
        problem=record_of(Problem, connection.execute(problem).mappings().one()),
        turns=tuple(_turns(connection, row["id"])),
        outcome=None if measured is None else record_of(Outcome, measured),
    )


def _turns(connection: Connection, episode_id: UUID) -> Iterable[Turn]:
    results = _tool_results(connection, episode_id)
    query = select(ACTION).where(ACTION.c.episode_id == episode_id).order_by(ACTION.c.turn_index)
    for row in connection.execute(query).mappings():
        yield record_of(
            Turn,
            row,
            index=row["turn_index"],
            observation=record_of(Observation, row),
            action=record_of(Action, row),
            tool_result=results.get(row["id"]),
        )


def _tool_results(connection: Connection, episode_id: UUID) -> Mapping[UUID, ToolResult]:
    files = _files(connection, episode_id)
    query = select(TOOL_RESULT).join(ACTION).where(ACTION.c.episode_id == episode_id)
    found: dict[UUID, ToolResult] = {}
    for row in connection.execute(query).mappings():
        action_id = row["action_id"]
        read = tuple(files[action_id, "read"]) if row["reads_known"] else None
        written = tuple(files[action_id, "written"])
        found[action_id] = record_of(ToolResult, row, written=written, read=read)
    return found


def _files(connection: Connection, episode_id: UUID) -> Mapping[tuple[UUID, str], list[Artifact]]:
    """The files each action wrote and read, by action and use."""
    query = (
        select(ARTIFACT_USE, ARTIFACT.c.size_bytes)
        .join(ARTIFACT)
        .join(ACTION, ACTION.c.id == ARTIFACT_USE.c.action_id)
        .where(ACTION.c.episode_id == episode_id)
        .order_by(ARTIFACT_USE.c.position)
    )
    files: dict[tuple[UUID, str], list[Artifact]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        files[row["action_id"], row["use"]].append(record_of(Artifact, row))
    return files
