"""A run as files, and back: bit for bit.

    <folder>/
        manifest.json             format, schema, run; of every file below its rows and sha256
        rows/<table>.jsonl.gz     the rows as Postgres itself writes and reads them as JSON

The hashes are of the rows, not of the compressed files. An import checks the files against them,
adds what is missing, writes the run out again from the database and compares: what does not match
to the last bit is undone, and nothing half-imported is left.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import Column, ColumnElement, Connection, Table, false, func, or_, select, text
from sqlalchemy import Text as SqlText

from mappa_core.core.errors import ArchiveError
from mappa_core.store import schema, tables
from mappa_core.store.copying import copy_lines

FORMAT = "mappa-run-1"
MANIFEST = "manifest.json"
ROWS_AT_ONCE = 500
NEWLINE = b"\n"
Lines = Iterator[bytes]


class RowsFile(BaseModel):
    """What one file of rows holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    sha256: str
    """Of its lines."""


class Manifest(BaseModel):
    """What an archive holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str
    schema_revision: str
    run_id: UUID
    run_name: str
    tables: dict[str, RowsFile]


def dump(connection: Connection, run_id: UUID, run_name: str, folder: Path) -> Manifest:
    """Write a run's rows into `folder` as one consistent state; the manifest is written last.

    Args:
        connection: Inside a transaction of isolation REPEATABLE READ.
        run_id: The run.
        run_name: For people who read the manifest.
        folder: Made when absent.
    """
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    files = {
        table.name: _write(_rows_path(folder, table), lines)
        for table, lines in _rows_of_run(connection, run_id)
    }
    manifest = Manifest(
        format=FORMAT,
        schema_revision=schema.head_revision(),
        run_id=run_id,
        run_name=run_name,
        tables=files,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
    return manifest


def load(connection: Connection, folder: Path) -> Manifest:
    """Add the run of an archive; a repeat changes nothing.

    Args:
        connection: Inside a transaction, which has to be rolled back when this raises.
        folder: What `dump` wrote.

    Raises:
        ArchiveError: It is damaged, of another version, or another run of its id is here.
    """
    manifest = _read_manifest(folder)
    for table in tables.METADATA.sorted_tables:
        path = _rows_path(folder, table)
        if _summary(_lines_of(path)) != manifest.tables[table.name]:
            raise ArchiveError(f"{path} is not what the manifest says: export the run again")
    for table in tables.METADATA.sorted_tables:
        _add(connection, table, _lines_of(_rows_path(folder, table)))
    different = [
        table.name
        for table, lines in _rows_of_run(connection, manifest.run_id)
        if _summary(lines) != manifest.tables[table.name]
    ]
    if different:
        raise ArchiveError(
            f"the database holds other rows of run {manifest.run_name} than {folder} "
            f"({', '.join(different)}): nothing was imported; import into an empty database"
        )
    return manifest


def _read_manifest(folder: Path) -> Manifest:
    """The checked manifest of an archive.

    Raises:
        ArchiveError: There is none, it is damaged or of another version.
    """
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise ArchiveError(
            f"{folder} has no {MANIFEST}: name a folder of `mappa export`"
        ) from error
    except (OSError, ValidationError) as error:
        raise ArchiveError(f"{folder / MANIFEST} is damaged: export the run again") from error
    if (manifest.format, manifest.schema_revision) != (FORMAT, schema.head_revision()):
        raise ArchiveError(
            f"{folder} was exported at schema {manifest.schema_revision}, this version imports "
            f"{schema.head_revision()}: import it with the version that wrote it, `mappa db "
            "upgrade`, and export it again"
        )
    if set(manifest.tables) != {table.name for table in tables.METADATA.sorted_tables}:
        raise ArchiveError(f"{folder / MANIFEST} does not name every table: export the run again")
    return manifest


def _rows_path(folder: Path, table: Table) -> Path:
    """Where an archive keeps the rows of `table`."""
    return folder / "rows" / f"{table.name}.jsonl.gz"


def _lines_of(path: Path) -> Lines:
    """The lines of one file, without their ends.

    Raises:
        ArchiveError: It is missing or damaged.
    """
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                # Told apart from the rest here, while the file's name is known.
                line.decode()
                yield line.removesuffix(NEWLINE)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ArchiveError(f"{path} is missing or damaged: export the run again") from error


def _rows_of_run(connection: Connection, run_id: UUID) -> Iterator[tuple[Table, Lines]]:
    # Times are written in the session's zone, and floats as exactly as this setting says.
    connection.execute(text("SET LOCAL timezone = 'UTC'"))
    connection.execute(text("SET LOCAL extra_float_digits = 1"))
    for table, belongs in _belonging(run_id).items():
        rows = select(*_stored(table)).where(belongs).order_by(*table.primary_key).subquery("rows")
        as_json = func.row_to_json(text("rows.*")).cast(SqlText)
        streamed = connection.execution_options(yield_per=ROWS_AT_ONCE)
        lines = streamed.scalars(select(as_json).select_from(rows))
        yield table, (line.encode() for line in lines)


def _belonging(run_id: UUID) -> Mapping[Table, ColumnElement[bool]]:
    """For each table, in an order that foreign keys allow, which of its rows belong to `run_id`.

    Found by following the foreign keys, so a new table needs no mention:

    owned     a chain of foreign keys leads from the row to the run (episode, action, ...)
    shared    owned rows refer to it (problem, coach, artifact), or it was made of the run and may
              be used by others (correction)
    """
    owned: dict[Table, ColumnElement[bool]] = {tables.RUN: tables.RUN.c.id == run_id}
    for table in tables.METADATA.sorted_tables:
        if table not in owned and (condition := _through_parent(table, owned)) is not None:
            owned[table] = condition
    return {
        table: owned[table] if table in owned else _shared(table, owned, run_id)
        for table in tables.METADATA.sorted_tables
    }


def _stored(table: Table) -> tuple[Column[Any], ...]:
    """All columns but those that Postgres computes of others."""
    return tuple(column for column in table.columns if column.computed is None)


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


def _write(path: Path, lines: Lines) -> RowsFile:
    # No name and no time in the header: one run, one file.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        return _summary(lines, file)


def _summary(lines: Lines, copy: gzip.GzipFile | None = None) -> RowsFile:
    """What the lines are, which are also written into `copy`."""
    rows, digest = 0, hashlib.sha256()
    for line in lines:
        digest.update(line + NEWLINE)
        if copy is not None:
            copy.write(line + NEWLINE)
        rows += 1
    return RowsFile(rows=rows, sha256=digest.hexdigest())


def _add(connection: Connection, table: Table, lines: Lines) -> None:
    connection.execute(text("CREATE TEMPORARY TABLE arriving (line json) ON COMMIT DROP"))
    copy_lines(connection, "arriving", lines)
    name = f'"{table.schema}"."{table.name}"'
    every = f"json_populate_record(NULL::{name}, arriving.line)"
    columns = [f'"{column.name}"' for column in _stored(table)]
    into, taken = ", ".join(columns), ", ".join(f"row.{column}" for column in columns)
    insert = f"INSERT INTO {name} ({into}) SELECT {taken} FROM arriving, {every} AS row"  # noqa: S608 (ours)
    connection.execute(text(f"{insert} ON CONFLICT DO NOTHING"))
    connection.execute(text("DROP TABLE arriving"))
