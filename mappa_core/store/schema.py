"""Which version of the tables a database has, and how it gets the newest.

Revisions are the files of `migrations/`, which the wheel carries, so an installed MAPPA upgrades a
database as well as a checkout does.
"""

import logging
from functools import cache

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from mappa_core.core.errors import SchemaMismatch
from mappa_core.core.package_files import package_folder
from mappa_core.store import roles
from mappa_core.store.connection import transaction_at
from mappa_core.store.tables import SCHEMA

_log = logging.getLogger(__name__)


def upgrade(url: str) -> None:
    """Bring the database at `url` to the newest revision, and grant `roles`, in one transaction.

    Raises:
        SchemaMismatch: It was made by a newer version of MAPPA.
        StoreError: It is unreachable or refused.
    """
    try:
        with transaction_at(url) as connection:
            earlier = revision_of(connection)
            if earlier is not None and is_known(earlier) and earlier != head_revision():
                _log.warning(
                    "bringing the store from schema %s to %s; this takes minutes if it is large",
                    earlier,
                    head_revision(),
                )
            command.upgrade(migration_config(connection), "head")
            if earlier != head_revision() or not roles.are_granted(connection):
                roles.create(connection)
                roles.grant(connection)
    except CommandError as error:
        raise _too_new() from error


def current_revision(url: str) -> str | None:
    """The revision of the database at `url`; None where MAPPA has no tables yet.

    Raises:
        StoreError: It is unreachable.
    """
    with transaction_at(url) as connection:
        return revision_of(connection)


@cache
def head_revision() -> str:
    """The newest revision this version of MAPPA knows."""
    return _known_revisions()[0]


def check(connection: Connection) -> None:
    """Refuse a database that is not at the newest revision.

    Raises:
        SchemaMismatch: It is older or newer, or empty.
    """
    revision = revision_of(connection)
    if revision == head_revision():
        return
    if revision is not None and not is_known(revision):
        raise _too_new()
    have = "has no MAPPA tables" if revision is None else f"is at schema {revision}"
    raise SchemaMismatch(
        f"the database {have}, this version needs {head_revision()}; run `mappa db upgrade`"
    )


def migration_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration; `migrations/env.py` runs on `connection`."""
    config = Config()
    config.set_main_option("script_location", str(package_folder("migrations")))
    config.attributes["connection"] = connection
    return config


def is_known(revision: str) -> bool:
    """Whether this version of MAPPA has that revision, and can bring it up to date."""
    return revision in _known_revisions()


@cache
def _known_revisions() -> tuple[str, ...]:
    """Every revision, newest first."""
    scripts = ScriptDirectory.from_config(migration_config())
    return tuple(script.revision for script in scripts.walk_revisions())


def revision_of(connection: Connection) -> str | None:
    """The revision of the connected database; None where MAPPA has no tables yet."""
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()


def _too_new() -> SchemaMismatch:
    return SchemaMismatch(
        "the database was made by a newer version of MAPPA; install that version, or point "
        "MAPPA_DATABASE_URL to another database"
    )
