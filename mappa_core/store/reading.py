"""The statements that read records back."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Connection, String, Table, cast, or_, select

from mappa_core.core.errors import NotFound
from mappa_core.core.records.episodes import Episode, PolicyVersion, StopReason, Turn
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import ScoredAction, ScoreEntry
from mappa_core.core.records.tools import Artifact, ToolResult
from mappa_core.core.records.updates import Checkpoint, Update, UpdateEntry
from mappa_core.store import episode_mapping, mapping
from mappa_core.store.tables import (
    ACTION,
    ARTIFACT,
    ARTIFACT_USE,
    CHECKPOINT,
    COACH,
    COACH_SCORE,
    EPISODE,
    OUTCOME,
    POLICY_VERSION,
    PROBLEM,
    RUN,
    TOOL_RESULT,
    UPDATE,
    UPDATE_ACTION,
)

_CANDIDATES_NAMED = 4


def run(connection: Connection, name_or_id: str) -> Run:
    """One run by name, id or unambiguous prefix of either.

    Raises:
        NotFound: None matches, or several do.
    """
    exact = or_(RUN.c.name == name_or_id, cast(RUN.c.id, String) == name_or_id)
    prefix = or_(
        RUN.c.name.startswith(name_or_id, autoescape=True),
        cast(RUN.c.id, String).startswith(name_or_id.lower(), autoescape=True),
    )
    row = _matching(connection, RUN, exact) or _matching(connection, RUN, prefix)
    if row is None:
        raise NotFound(f"no run {name_or_id!r} in the store; `mappa runs` lists them")
    return mapping.to_run(row)


def runs(connection: Connection, limit: int) -> tuple[Run, ...]:
    """The latest runs, newest first."""
    query = select(RUN).order_by(RUN.c.started_at.desc(), RUN.c.id).limit(limit)
    return tuple(mapping.to_run(row) for row in connection.execute(query).mappings())


def policies(connection: Connection, run_id: UUID) -> tuple[PolicyVersion, ...]:
    """All policy versions of a run, by step and agent."""
    columns = POLICY_VERSION.c
    query = select(POLICY_VERSION).where(columns.run_id == run_id)
    rows = connection.execute(query.order_by(columns.step, columns.agent)).mappings()
    return tuple(mapping.to_policy(row) for row in rows)


def policy_version(
    connection: Connection, run_id: UUID, agent: str, step: int
) -> PolicyVersion | None:
    """One policy version, or None."""
    columns = POLICY_VERSION.c
    query = select(POLICY_VERSION).where(
        columns.run_id == run_id, columns.agent == agent, columns.step == step
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else mapping.to_policy(row)


def episode(connection: Connection, id_or_prefix: str) -> Episode:
    """One episode with all its turns.

    Raises:
        NotFound: None matches, or several do.
    """
    row = _matching(connection, EPISODE, _named(EPISODE.c.id, id_or_prefix))
    if row is None:
        raise NotFound(f"no episode {id_or_prefix!r} in the store")
    problem = select(PROBLEM).where(PROBLEM.c.id == row["problem_id"])
    outcome = select(OUTCOME).where(OUTCOME.c.episode_id == row["id"])
    return episode_mapping.to_episode(
        row,
        episode_mapping.to_problem(connection.execute(problem).mappings().one()),
        _turns(connection, row["id"]),
        connection.execute(outcome).mappings().one_or_none(),
    )


def _named(column: Column[UUID], id_or_prefix: str) -> ColumnElement[bool]:
    """Whether an id is the one named: by its index where it is named in full."""
    try:
        return column == UUID(id_or_prefix)
    except ValueError:
        return cast(column, String).startswith(id_or_prefix.lower(), autoescape=True)


def _matching(
    connection: Connection, table: Table, condition: ColumnElement[bool]
) -> mapping.Row | None:
    """The one row that matches, or None.

    Raises:
        NotFound: Several match.
    """
    query = select(table).where(condition).order_by(table.c.id).limit(_CANDIDATES_NAMED + 1)
    rows = connection.execute(query).mappings().all()
    if len(rows) > 1:
        names = ", ".join(str(row["id"])[:13] for row in rows[:_CANDIDATES_NAMED])
        more = ", ..." if len(rows) > _CANDIDATES_NAMED else ""
        raise NotFound(f"several {table.name}s match, name one by its id: {names}{more}")
    return rows[0] if rows else None


def _turns(connection: Connection, episode_id: UUID) -> tuple[Turn, ...]:
    results = _tool_results(connection, episode_id)
    query = select(ACTION).where(ACTION.c.episode_id == episode_id).order_by(ACTION.c.turn_index)
    rows = connection.execute(query).mappings()
    return tuple(episode_mapping.to_turn(row, results.get(row["id"])) for row in rows)


def _tool_results(connection: Connection, episode_id: UUID) -> dict[UUID, ToolResult]:
    files = _files(connection, episode_id)
    query = select(TOOL_RESULT).join(ACTION).where(ACTION.c.episode_id == episode_id)
    return {
        row["action_id"]: episode_mapping.to_tool_result(
            row, files[row["action_id"], "written"], files[row["action_id"], "read"]
        )
        for row in connection.execute(query).mappings()
    }


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
        files[row["action_id"], row["use"]].append(episode_mapping.to_artifact(row))
    return files


def scores(connection: Connection, episode_id: UUID) -> tuple[ScoreEntry, ...]:
    """All scores of an episode, in turn order, then as they were given."""
    query = (
        select(COACH_SCORE, *(column for column in COACH.c if column.name != "id"))
        .join(COACH)
        .join(ACTION, ACTION.c.id == COACH_SCORE.c.action_id)
        .where(ACTION.c.episode_id == episode_id)
        .order_by(ACTION.c.turn_index, COACH_SCORE.c.scored_at, COACH_SCORE.c.id)
    )
    return tuple(mapping.to_score(row) for row in connection.execute(query).mappings())


def scored_actions(
    connection: Connection, run_id: UUID, agent: str, iteration: int
) -> tuple[ScoredAction, ...]:
    """One agent's actions of one iteration's finished training episodes, with what trains them."""
    trains = (COACH_SCORE.c.action_id == ACTION.c.id) & COACH_SCORE.c.trained
    query = (
        select(ACTION, EPISODE.c.problem_id, EPISODE.c.rollout_index, COACH_SCORE.c.score)
        .add_columns(POLICY_VERSION.c.step.label("policy_step"))
        .join(EPISODE)
        .join(POLICY_VERSION, POLICY_VERSION.c.id == ACTION.c.policy_version_id)
        .outerjoin(COACH_SCORE, trains)
        .where(
            EPISODE.c.run_id == run_id,
            EPISODE.c.phase == "train",
            EPISODE.c.iteration == iteration,
            # Not true of an episode that still runs either.
            EPISODE.c.stop_reason != StopReason.FAILED.value,
            ACTION.c.agent == agent,
        )
        .order_by(EPISODE.c.problem_id, EPISODE.c.rollout_index, ACTION.c.turn_index)
    )
    return tuple(
        episode_mapping.to_scored_action(row) for row in connection.execute(query).mappings()
    )


def score_ids(connection: Connection, action_ids: Sequence[UUID]) -> Mapping[UUID, UUID]:
    """The training score of each action that has one."""
    columns = COACH_SCORE.c
    query = select(columns.action_id, columns.id).where(
        columns.action_id.in_(action_ids), columns.trained
    )
    return {row.action_id: row.id for row in connection.execute(query)}


def update(connection: Connection, run_id: UUID, agent: str, iteration: int) -> Update | None:
    """One update with its entries, or None."""
    query = select(UPDATE).where(
        UPDATE.c.run_id == run_id, UPDATE.c.agent == agent, UPDATE.c.iteration == iteration
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    entries = (
        select(UPDATE_ACTION)
        .where(UPDATE_ACTION.c.update_id == row["id"])
        .order_by(UPDATE_ACTION.c.position)
    )
    return mapping.to_update(row, connection.execute(entries).mappings())


def learnt(connection: Connection, episode_id: UUID) -> Mapping[UUID, tuple[Update, UpdateEntry]]:
    """What updates made of an episode's actions; the updates come without their other entries."""
    columns = UPDATE_ACTION.c
    query = (
        select(UPDATE, columns.action_id, columns.score_id)
        .add_columns(columns.advantage, columns.weight, columns.left_out)
        .select_from(UPDATE_ACTION)
        .join(UPDATE)
        .join(ACTION, ACTION.c.id == columns.action_id)
        .where(ACTION.c.episode_id == episode_id)
    )
    return {
        row["action_id"]: (mapping.to_update(row, ()), mapping.to_update_entry(row))
        for row in connection.execute(query).mappings()
    }


def checkpoints(
    connection: Connection, run_id: UUID
) -> tuple[tuple[PolicyVersion, Checkpoint], ...]:
    """All checkpoints of a run with their policy versions, oldest first."""
    query = (
        select(POLICY_VERSION, *(column.label(f"saved_{column.name}") for column in CHECKPOINT.c))
        .join(CHECKPOINT)
        .where(POLICY_VERSION.c.run_id == run_id)
        .order_by(POLICY_VERSION.c.step, POLICY_VERSION.c.agent, CHECKPOINT.c.saved_at)
    )
    return tuple(_policy_and_checkpoint(row) for row in connection.execute(query).mappings())


def lent(connection: Connection, run_id: UUID) -> frozenset[str]:
    """The directories of a run's weights that another run's policies name too."""
    own = POLICY_VERSION.alias("own")
    query = (
        select(POLICY_VERSION.c.adapter_uri)
        .join(own, own.c.adapter_uri == POLICY_VERSION.c.adapter_uri)
        .where(own.c.run_id == run_id, POLICY_VERSION.c.run_id != run_id)
    )
    return frozenset(connection.execute(query).scalars())


def _policy_and_checkpoint(row: mapping.Row) -> tuple[PolicyVersion, Checkpoint]:
    policy = {column.name: row[column.name] for column in POLICY_VERSION.c}
    saved = {column.name: row[f"saved_{column.name}"] for column in CHECKPOINT.c}
    return mapping.to_policy(policy), mapping.to_checkpoint(saved)
