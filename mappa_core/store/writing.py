"""The statements that write, each within the caller's transaction."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, Table, func, select, update
from sqlalchemy.dialects.postgresql import Insert, insert

from mappa_core.core.errors import NotFound
from mappa_core.core.records.episodes import Episode
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.store import episode_mapping, tables
from mappa_core.store.copying import copy_new
from mappa_core.store.mapping import Values
from mappa_core.store.rows import Rows, score_rows

COPY_FROM = 32
"""Rows from which COPY is faster than INSERT."""
SHARED = frozenset({tables.ARTIFACT, tables.COACH, tables.PROBLEM})
"""Tables whose rows belong to no run: several runs may add the same one at once."""


def add(connection: Connection, rows: Rows) -> None:
    """Insert the rows whose primary key is not there yet.

    Only the primary key is forgiven: any other clash is two different things of one name.
    """
    for table, values in rows.items():
        if table in SHARED:
            values = _once_in_order(table, values)
        elif len(values) >= COPY_FROM and copy_new(connection, table, values):
            continue
        if values:
            connection.execute(_insert_new(table), values)


def _once_in_order(table: Table, values: Sequence[Values]) -> list[Values]:
    """Each key once, and always in the same order: two runs that add them never deadlock."""
    (key,) = (column.name for column in table.primary_key)
    by_key = {str(row[key]): row for row in values}
    return [by_key[key] for key in sorted(by_key)]


def add_episode(connection: Connection, episode: Episode) -> bool:
    """Insert an episode that begins; False where it was there already."""
    row = episode_mapping.episode_row(episode)
    return connection.execute(_insert_new(tables.EPISODE), row).rowcount == 1


def _insert_new(table: Table) -> Insert:
    keys = [column.name for column in table.primary_key]
    return insert(table).on_conflict_do_nothing(index_elements=keys)


def link_run(
    connection: Connection,
    run_id: UUID,
    *,
    prefect_flow_run_id: str | None,
    mlflow_run_id: str | None,
) -> None:
    """Set the links that are given."""
    columns = tables.RUN.c
    connection.execute(
        update(tables.RUN)
        .where(columns.id == run_id)
        .values(
            prefect_flow_run_id=func.coalesce(prefect_flow_run_id, columns.prefect_flow_run_id),
            mlflow_run_id=func.coalesce(mlflow_run_id, columns.mlflow_run_id),
        )
    )


def close_run(connection: Connection, run_id: UUID, status: RunStatus, error: str | None) -> None:
    """Set where a run stands; one that runs has no end."""
    ended_at = None if status is RunStatus.RUNNING else func.now()
    connection.execute(
        update(tables.RUN)
        .where(tables.RUN.c.id == run_id)
        .values(status=status.value, error=error, ended_at=ended_at)
    )


def close_episode(connection: Connection, episode: Episode) -> None:
    """Write an episode's end; the first end stays."""
    closed = connection.execute(
        update(tables.EPISODE)
        .where(tables.EPISODE.c.id == episode.id, tables.EPISODE.c.stop_reason.is_(None))
        .values(stop_reason=episode.stop_reason, error=episode.error, closed_at=func.now())
    )
    if closed.rowcount and episode.outcome is not None:
        outcome = episode_mapping.outcome_row(episode, episode.outcome)
        add(connection, {tables.OUTCOME: [outcome]})


def add_scores(connection: Connection, entries: Sequence[ScoreEntry]) -> None:
    """Insert scores; a new training score takes the place of one that was left unscored."""
    asked_again = [entry for entry in entries if entry.trained]
    columns = tables.COACH_SCORE.c
    connection.execute(
        update(tables.COACH_SCORE)
        .where(
            columns.action_id.in_([entry.action_id for entry in asked_again]),
            columns.id.not_in([entry.id for entry in asked_again]),
            columns.trained,
            columns.score.is_(None),
        )
        .values(trained=False)
    )
    add(connection, score_rows(entries))


def set_model_version(
    connection: Connection, checkpoint_id: UUID, registered_model: str, version: str
) -> bool:
    """Link a checkpoint to its registered model version; False where it was.

    Raises:
        NotFound: There is no such checkpoint.
    """
    columns = tables.CHECKPOINT.c
    mine = columns.id == checkpoint_id
    before = connection.execute(
        select(columns.registered_model, columns.model_version).where(mine).with_for_update()
    ).one_or_none()
    if before is None:
        raise NotFound(f"no checkpoint {checkpoint_id} in the store")
    if tuple(before) == (registered_model, version):
        return False
    new = {"registered_model": registered_model, "model_version": version}
    connection.execute(update(tables.CHECKPOINT).where(mine).values(new))
    return True
