"""The whole database in one file and back, with Postgres's own programs.

They come with the embedded Postgres and work on any server up to its version. Passwords travel in
the environment, where other users cannot see them.
"""

import os
import subprocess
from pathlib import Path

from sqlalchemy import text

from mappa_core.adapters.store import schema, tables
from mappa_core.adapters.store.connection import boundary, connect, normalised
from mappa_core.adapters.store.places import installed_programs
from mappa_core.domain.errors import ArchiveError, DiskFull, StoreError, UserError

SCHEMAS = (tables.SCHEMA, "audit")
_COUNT_RUNS = "SELECT count(*) FROM mappa.run"
_CREATE_AUDITOR = """
DO $$ BEGIN CREATE ROLE mappa_auditor NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$
"""


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
        _run(url, "pg_dump", "--format=custom", *schemas, f"--file={unfinished.resolve()}")
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)


def restore(url: str, file: Path) -> None:
    """Fill a database that holds no runs with a backup, all of it or nothing.

    The schema becomes the backup's; an older one is brought up to date.

    Raises:
        ArchiveError: The file is no backup, or the database holds runs.
        StoreError: The server is unreachable or refused.
    """
    if not file.is_file():
        raise ArchiveError(f"{file} is not there: name a file of `mappa db backup`")
    engine = connect(url, pool_size=1)
    try:
        with boundary(engine.url), engine.begin() as connection:
            if schema.revision_of(connection) and connection.scalar(text(_COUNT_RUNS)):
                raise ArchiveError(
                    "the database holds runs, and a backup is restored into an empty one only: "
                    "set MAPPA_HOME to a new folder, or MAPPA_DATABASE_URL to a new database"
                )
            for name in SCHEMAS:
                connection.execute(text(f"DROP SCHEMA IF EXISTS {name} CASCADE"))
            connection.execute(text(_CREATE_AUDITOR))
    finally:
        engine.dispose()
    options = ("--single-transaction", "--exit-on-error", "--no-owner")
    _run(url, "pg_restore", *options, f"--dbname={normalised(url).database}", str(file.resolve()))
    schema.upgrade(url)


def vacuum(url: str) -> None:
    """Give space back and bring the planner's statistics up to date.

    Raises:
        StoreError: The server is unreachable or refused.
    """
    engine = connect(url, pool_size=1)
    try:
        with boundary(engine.url), engine.connect() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            alone.execute(text("VACUUM (ANALYZE)"))
    finally:
        engine.dispose()


def _run(url: str, program: str, *arguments: str) -> None:
    address = normalised(url)
    environment = {
        "PATH": os.defpath,
        "LC_ALL": "C",
        "PGHOST": str(address.host or address.query.get("host", "")),
        "PGPORT": str(address.port or ""),
        "PGUSER": address.username or "",
        "PGPASSWORD": address.password or "",
        "PGDATABASE": address.database or "",
    }
    result = subprocess.run(
        [str(installed_programs() / program), *arguments],
        env={name: value for name, value in environment.items() if value},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise _failure(program, result.stderr)


def _failure(program: str, said: str) -> UserError | StoreError | DiskFull:
    line = next(iter(said.strip().splitlines()), "no message")
    if "No space left on device" in said:
        return DiskFull(f"no space left for {program}: free some, then try again")
    if program == "pg_restore" and ("input file" in said or "valid archive" in said):
        return ArchiveError(f"the file is no backup of `mappa db backup`, or damaged: {line}")
    return StoreError(f"{program} failed: {line}")
