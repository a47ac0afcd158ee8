"""The whole database in one file and back, with Postgres's own programs.

They come with the embedded Postgres. A backup is taken of any server up to their version, and
restored into version 17 and later. They are given the very address that our own connections use;
a password travels in the environment, where other users cannot see it.

    restore ─▶ read the file ─▶ our schemas aside ─▶ pg_restore ─▶ drop what is aside
                  └─ refused: nothing was touched      └─ failed ─▶ back as it was
"""

import os
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, text

from mappa_core.core.errors import ArchiveError, DiskFull, StoreError, UserError
from mappa_core.store import roles, schema, tables
from mappa_core.store.connection import boundary, connect, normalised, transaction_at
from mappa_core.store.places import installed_programs

SCHEMAS = (tables.SCHEMA, "audit")
_ASIDE = "_before_restore"
_COUNT_RUNS = "SELECT count(*) FROM mappa.run"
# Our own `audit` holds nothing but views.
_FOREIGN = """
SELECT nspname FROM pg_namespace LEFT JOIN pg_class ON relnamespace = pg_namespace.oid
WHERE nspname = 'audit' AND (NOT :migrated OR relkind <> 'v')
   OR nspname = 'mappa' AND NOT :migrated AND relkind IS NOT NULL
LIMIT 1
"""
_REVISION = re.compile(r"^COPY mappa\.alembic_version .*\n(.+)$", re.MULTILINE)


def backup(url: str, file: Path) -> None:
    """Write the store's database to a new file, in Postgres's compressed format.

    Raises:
        UserError: The file exists.
        StoreError: The server is unreachable or newer than the programs.
        DiskFull: No space left.
    """
    if file.exists():
        raise UserError(f"{file} exists: name a new file")
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        schemas = [f"--schema={name}" for name in SCHEMAS]
        _run_on(url, "pg_dump", "--format=custom", *schemas, f"--file={unfinished.resolve()}")
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)


def restore(url: str, file: Path) -> None:
    """Fill a database that holds no runs with a backup, all of it or nothing.

    The schema becomes the backup's; an older one is brought up to date.

    Raises:
        ArchiveError: The file is no backup or of a newer version, or the database holds runs or
            another program's tables.
        StoreError: The server is unreachable or refused.
    """
    if not file.is_file():
        raise ArchiveError(f"{file} is not there: name a file of `mappa db backup`")
    _check_file(file)
    with _aside(url):
        options = ("--single-transaction", "--exit-on-error", "--no-owner")
        _run_on(url, "pg_restore", *options, str(file.resolve()))
    schema.upgrade(url)


def _check_file(file: Path) -> None:
    """Refuse what cannot be restored before anything is touched."""
    only = ("--data-only", f"--schema={tables.SCHEMA}", "--table=alembic_version", "--file=-")
    found = _REVISION.search(_run("pg_restore", *only, str(file.resolve())))
    if found is None:
        raise ArchiveError(f"{file} is a backup of something else: name one of `mappa db backup`")
    if not schema.is_known(found[1]):
        raise ArchiveError(f"{file} is of a newer version of MAPPA: restore it with that version")


@contextmanager
def _aside(url: str) -> Generator[None]:
    """Our schemas out of the way meanwhile: gone after success, back where the block fails."""
    exists = text("SELECT to_regnamespace(:name) IS NOT NULL")
    with transaction_at(url) as connection:
        _check_database(connection)
        roles.create(connection)
        moved = [name for name in SCHEMAS if connection.scalar(exists, {"name": name})]
        for name in moved:
            _drop(connection, f"{name}{_ASIDE}")
            connection.execute(text(f"ALTER SCHEMA {name} RENAME TO {name}{_ASIDE}"))
    try:
        yield
    except BaseException:
        with transaction_at(url) as connection:
            for name in moved:
                connection.execute(text(f"ALTER SCHEMA {name}{_ASIDE} RENAME TO {name}"))
        raise
    with transaction_at(url) as connection:
        for name in moved:
            _drop(connection, f"{name}{_ASIDE}")


def _check_database(connection: Connection) -> None:
    migrated = schema.revision_of(connection) is not None
    if migrated and connection.scalar(text(_COUNT_RUNS)):
        raise ArchiveError(
            "the database holds runs, and a backup is restored into an empty one only: "
            "set MAPPA_HOME to a new folder, or MAPPA_DATABASE_URL to a new database"
        )
    theirs = connection.scalar(text(_FOREIGN), {"migrated": migrated})
    if theirs is not None:
        raise ArchiveError(
            f"the database has a schema {theirs} that is not MAPPA's: set MAPPA_DATABASE_URL to a "
            "database of its own"
        )


def _drop(connection: Connection, name: str) -> None:
    connection.execute(text(f"DROP SCHEMA IF EXISTS {name} CASCADE"))


def vacuum(url: str) -> None:
    """Give space back and bring the planner's statistics up to date.

    Raises:
        StoreError: The server is unreachable or refused.
    """
    engine = connect(url, pool_size=1)
    try:
        with boundary(engine.url), engine.connect() as connection:
            outside = connection.execution_options(isolation_level="AUTOCOMMIT")
            outside.execute(text("VACUUM (ANALYZE)"))
    finally:
        engine.dispose()


def _run_on(url: str, program: str, *arguments: str) -> None:
    """Run a program on the database at `url`, however its address is spelled."""
    address = normalised(url)
    with boundary(address):
        _, spelled = address.get_dialect()().create_connect_args(address)
        password = spelled.pop("password", None)
        where = make_conninfo(**spelled)
    _run(program, f"--dbname={where}", *arguments, password=password)


def _run(program: str, *arguments: str, password: str | None = None) -> str:
    """What a program prints; what its user has set for libpq holds as it does for us."""
    kept = {name: value for name, value in os.environ.items() if name == "HOME" or name[:2] == "PG"}
    secret = {} if password is None else {"PGPASSWORD": password}
    result = subprocess.run(
        [str(installed_programs() / program), *arguments],
        env={**kept, "PATH": os.defpath, "LC_ALL": "C", **secret},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise _failure(program, result.stderr)
    return result.stdout


def _failure(program: str, said: str) -> UserError | StoreError | DiskFull:
    line = next(iter(said.strip().splitlines()), "no message")
    if "No space left on device" in said:
        return DiskFull(f"no space left for {program}: free some, then try again")
    if program == "pg_restore" and ("input file" in said or "valid archive" in said):
        return ArchiveError(f"the file is no backup of `mappa db backup`, or damaged: {line}")
    return StoreError(f"{program} failed: {line}")
