"""Rows named by a person: by a whole id, or by the first characters that no other row has."""

from uuid import UUID

from sqlalchemy import Column, ColumnElement, Connection, String, Table, cast, select

from mappa_core.core.errors import NotFound
from mappa_core.store.mapping import Row

_CANDIDATES_NAMED = 4


def id_is(column: Column[UUID], id_or_prefix: str) -> ColumnElement[bool]:
    """Whether an id is the one named: by its index where it is named in full."""
    try:
        return column == UUID(id_or_prefix)
    except ValueError:
        return cast(column, String).startswith(id_or_prefix.lower(), autoescape=True)


def find_one(connection: Connection, table: Table, condition: ColumnElement[bool]) -> Row | None:
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
