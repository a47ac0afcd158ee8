"""What is stored: `mappa runs | show | serve`."""

import asyncio
import json
from typing import Annotated

import typer

from mappa_cli.commands.options import Json
from mappa_cli.printing.console import open_console
from mappa_core.core.settings import Settings


def runs(as_json: Json = False) -> None:
    """List the runs in the store, newest first."""
    from mappa_cli.printing.tables import runs_json, runs_table
    from mappa_core.app.databases import opened_store

    with opened_store(Settings()) as store:
        found, claimed = store.runs.list_runs(), store.runs.list_claimed_runs()
    if as_json:
        typer.echo(json.dumps(runs_json(found, claimed)))
    else:
        open_console().print(runs_table(found, claimed))


def show(
    what: Annotated[str, typer.Argument(help="A run, or an episode: name, id or prefix.")],
    coach: Annotated[
        bool, typer.Option("--coach", help="Each score's exact prompt and reply, cost, latency.")
    ] = False,
) -> None:
    """Print a run's iterations and episodes, or an episode's whole conversation with scores."""
    from mappa_cli.printing.episode import print_episode
    from mappa_cli.printing.tables import print_run
    from mappa_core.app.databases import opened_store
    from mappa_core.core.errors import NotFound

    console = open_console()
    with opened_store(Settings()) as store:
        try:
            run = store.runs.get_run(what)
        except NotFound:
            print_episode(console, store, store.episodes.get_episode(what), in_full=coach)
        else:
            print_run(console, store, run)


def serve(
    prefect_port: Annotated[int, typer.Option(min=1, max=65535)] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
) -> None:
    """Open the Prefect and MLflow pages on what was stored, until Ctrl-C."""
    from mappa_cli.servers import serve as serve_pages

    console = open_console()
    with serve_pages(Settings(), prefect_port, mlflow_port) as addresses:
        for name, address in addresses.items():
            console.print(f"{name:8} {address}")
        console.print("Ctrl-C stops both.")
        asyncio.run(_forever())


async def _forever() -> None:
    await asyncio.Event().wait()
