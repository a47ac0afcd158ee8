"""Rows into tables: each table after those it refers to, and harmless when repeated."""

from collections.abc import Sequence
from typing import TypeAlias

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql

from mappa_core.store import tables
from mappa_core.store.copying import copy_new
from mappa_core.store.mapping import Values

Rows: TypeAlias = dict[Table, list[Values]]
"""What one write adds, by table."""
COPY_FROM = 32
"""Rows from which COPY is faster than INSERT."""
_SHARED = frozenset({tables.ARTIFACT, tables.COACH, tables.PROBLEM})
"""Tables whose rows belong to no run: several runs may add the same one at once."""
_IN_ORDER = tuple(tables.METADATA.sorted_tables)


def insert(connection: Connection, rows: Rows) -> None:
    """Add the rows whose primary key is not there yet.

    Only the primary key is forgiven: any other clash is two different things of one name.
    """
    for table, values in rows.items():
        if table in _SHARED:
            insert_new(connection, table, _once_in_order(table, values))
        elif len(values) < COPY_FROM or not copy_new(connection, table, values):
            insert_new(connection, table, values)


def insert_new(connection: Connection, table: Table, rows: Sequence[Values]) -> bool:
    """Add the rows whose primary key is not there yet; whether there were any."""
    if not rows:
        return False
    keys = [column.name for column in table.primary_key]
    statement = postgresql.insert(table).on_conflict_do_nothing(index_elements=keys)
    return connection.execute(statement, rows).rowcount > 0


def _once_in_order(table: Table, values: Sequence[Values]) -> list[Values]:
    """Each key once, and always in the same order: two runs that add them never deadlock."""
    (key,) = (column.name for column in table.primary_key)
    by_key = {str(row[key]): row for row in values}
    return [by_key[key] for key in sorted(by_key)]


def merged(many: Sequence[Rows]) -> Rows:
    """The rows of several writes as one, every table after the tables it refers to."""
    if len(many) == 1:
        return many[0]
    together: Rows = {table: [] for table in _IN_ORDER}
    for rows in many:
        for table, values in rows.items():
            together[table].extend(values)
    return {table: values for table, values in together.items() if values}
