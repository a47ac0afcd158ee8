"""`mappa db`: the store's database, and runs that come back from an export."""

from pathlib import Path
from typing import Annotated

import typer

from mappa_core.core.settings import Settings
from mappa_core.core.text import counted

database = typer.Typer(help="The experiment store's database.", no_args_is_help=True)


@database.command("import")
def import_run(
    folder: Annotated[Path, typer.Argument(help="What `mappa export` wrote.")],
) -> None:
    """Bring a run back from an export, bit for bit."""
    from mappa_core.store.opening import opened_store

    with opened_store(Settings()) as store:
        manifest = store.import_run(folder)
    rows = sum(file.rows for file in manifest.tables.values())
    typer.echo(f"{manifest.run_name}: {counted(rows, 'row')}, the same to the last bit")


@database.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="A new file.")],
) -> None:
    """Write the whole store to one file; checkpoints and MLflow's records are not in it."""
    from mappa_core.store import backup
    from mappa_core.store.opening import opened_databases

    with opened_databases(Settings()) as databases:
        backup.backup(databases.store, file)
    typer.echo(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


@database.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="What `mappa db backup` wrote.")],
) -> None:
    """Fill a store that holds no runs with a backup."""
    from mappa_core.store import backup
    from mappa_core.store.opening import opened_databases, opened_store

    with opened_databases(Settings()) as databases:
        backup.restore(databases.store, file)
    with opened_store(Settings()) as store:
        typer.echo(f"{counted(len(store.runs.list_runs(limit=1_000_000)), 'run')} restored")


@database.command("vacuum")
def vacuum() -> None:
    """Give space back and bring the planner's statistics up to date."""
    from mappa_core.store import backup
    from mappa_core.store.opening import opened_databases

    with opened_databases(Settings()) as databases:
        backup.vacuum(databases.store)
    typer.echo("done")


@database.command("url")
def url() -> None:
    """Print the connection string of the store in use (psql understands it)."""
    from mappa_core.store.opening import database_url

    typer.echo(database_url(Settings()))


@database.command("upgrade")
def upgrade() -> None:
    """Bring the store's schema up to this version."""
    from mappa_core.store import schema
    from mappa_core.store.opening import opened_databases

    with opened_databases(Settings()) as databases:
        before = schema.current_revision(databases.store)
        schema.upgrade(databases.store)
        after = schema.current_revision(databases.store)
    typer.echo(f"schema {after}" if before == after else f"schema {before or 'empty'} -> {after}")
