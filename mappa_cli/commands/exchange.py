"""`mappa export` and `mappa db`: the store's database, and runs that come and go."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import RunName
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted

database = typer.Typer(help="The experiment store's database.", no_args_is_help=True)


class Layout(StrEnum):
    """How the trajectories of an export are written."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    HF = "hf"


def export(
    run: RunName,
    to: Annotated[Layout, typer.Option("--to", help="hf: `datasets.load_dataset(FOLDER)`.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; default RUN-export.")
    ] = None,
) -> None:
    """Write a run's trajectories, with scores and rationales, and all its rows for `db import`."""
    from mappa_core.app.databases import opened_store
    from mappa_core.evaluate.trajectories import write_trajectories

    with opened_store(Settings()) as store:
        found = store.runs.get_run(run)
        folder = out or Path(f"{found.name}-export")
        if folder.exists():
            raise ConfigError(f"{folder} exists: name a new folder with --out")
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        _make_anew(unfinished)
        try:
            count = store.export_run(
                found,
                unfinished,
                lambda actions: write_trajectories(actions, unfinished, to.value),
            )
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    typer.echo(f"{counted(count, 'action')} of {found.name} in {folder}")


def _make_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be made: {error.strerror}") from error


@database.command("import")
def import_run(
    folder: Annotated[Path, typer.Argument(help="What `mappa export` wrote.")],
) -> None:
    """Bring a run back from an export, bit for bit."""
    from mappa_core.app.databases import opened_store

    with opened_store(Settings()) as store:
        manifest = store.import_run(folder)
    rows = sum(file.rows for file in manifest.tables.values())
    typer.echo(f"{manifest.run_name}: {counted(rows, 'row')}, the same to the last bit")


@database.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="A new file.")],
) -> None:
    """Write the whole store to one file; checkpoints and MLflow's records are not in it."""
    from mappa_core.app.databases import backup_database

    backup_database(Settings(), file)
    typer.echo(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


@database.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="What `mappa db backup` wrote.")],
) -> None:
    """Fill a store that holds no runs with a backup."""
    from mappa_core.app.databases import opened_store, restore_database

    restore_database(Settings(), file)
    with opened_store(Settings()) as store:
        typer.echo(f"{counted(len(store.runs.list_runs(limit=1_000_000)), 'run')} restored")


@database.command("vacuum")
def vacuum() -> None:
    """Give space back and bring the planner's statistics up to date."""
    from mappa_core.app.databases import vacuum_database

    vacuum_database(Settings())
    typer.echo("done")


@database.command("url")
def url() -> None:
    """Print the connection string of the store in use (psql understands it)."""
    from mappa_core.app.databases import database_url

    typer.echo(database_url(Settings()))


@database.command("upgrade")
def upgrade() -> None:
    """Bring the store's schema up to this version."""
    from mappa_core.app.databases import upgrade_database

    before, after = upgrade_database(Settings())
    typer.echo(f"schema {after}" if before == after else f"schema {before or 'empty'} -> {after}")
