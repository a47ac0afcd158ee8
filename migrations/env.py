"""Run by Alembic: connects the revisions to a database.

`store/schema.py` passes a connection and owns its transaction. From the command line
(`alembic revision --autogenerate`) the database of the settings is used.
"""

from typing import Literal

from alembic import context
from sqlalchemy import Connection, text

from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.store.connection import connect
from mappa_core.store.tables import METADATA, SCHEMA
from mappa_core.store.text import AnyJson, AnyText

# Any number, the same for every MAPPA: two processes never migrate one database at once.
_MIGRATION_LOCK = 0x6D61707061


def _ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "schema" or name == SCHEMA


def _plain(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Our column types, in a new revision, as the Postgres types they are."""
    if kind != "type" or not isinstance(item, AnyText | AnyJson):
        return False
    return "sa.Text()" if isinstance(item, AnyText) else "postgresql.JSONB()"


def _migrate(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_name=_ours,
        render_item=_plain,
    )
    with context.begin_transaction():
        context.run_migrations()


def _from_settings() -> None:
    url = Settings().database_url
    if url is None:
        raise ConfigError("set MAPPA_DATABASE_URL to the database to migrate (`mappa db url`)")
    with connect(url, pool_size=1).begin() as connection:
        _migrate(connection)


given: Connection | None = context.config.attributes.get("connection")
if given is None:
    _from_settings()
else:
    _migrate(given)
