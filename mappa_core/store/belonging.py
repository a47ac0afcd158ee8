"""Which rows belong to a run: found by following the foreign keys, so a new table needs no mention.

owned     a chain of foreign keys leads from the row to the run (episode, action, coach_score, ...)
shared    owned rows refer to it (problem, coach, artifact), or it was made of the run and may be
          used by others (correction)
"""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import ColumnElement, Table, false, or_, select

from mappa_core.store import tables


def rows_of_run(run_id: UUID) -> Mapping[Table, ColumnElement[bool]]:
    """For each table, in an order that foreign keys allow, which of its rows belong to `run_id`."""
    owned: dict[Table, ColumnElement[bool]] = {tables.RUN: tables.RUN.c.id == run_id}
    for table in tables.METADATA.sorted_tables:
        if table not in owned and (condition := _through_parent(table, owned)) is not None:
            owned[table] = condition
    return {
        table: owned[table] if table in owned else _shared(table, owned, run_id)
        for table in tables.METADATA.sorted_tables
    }


def _through_parent(
    table: Table, owned: Mapping[Table, ColumnElement[bool]]
) -> ColumnElement[bool] | None:
    for column in table.columns:
        for key in column.foreign_keys:
            parent = key.column.table
            if parent in owned and not column.nullable:
                return column.in_(select(key.column).where(owned[parent]))
    return None


def _shared(
    table: Table, owned: Mapping[Table, ColumnElement[bool]], run_id: UUID
) -> ColumnElement[bool]:
    return or_(
        table.c.run_id == run_id if "run_id" in table.c else false(),
        *(
            key.column.in_(select(column).where(condition))
            for child, condition in owned.items()
            for column in child.columns
            for key in column.foreign_keys
            if key.column.table is table
        ),
    )
