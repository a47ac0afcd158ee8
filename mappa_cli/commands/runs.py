"""`mappa runs`: the runs in the store."""

import json

import typer

from mappa_cli.commands.options import Json
from mappa_cli.printing.console import open_console
from mappa_core.core.settings import Settings


def runs(as_json: Json = False) -> None:
    """List the runs in the store, newest first."""
    from mappa_cli.printing.runs import runs_json, runs_table
    from mappa_core.store.opening import opened_store

    with opened_store(Settings()) as store:
        found, claimed = store.runs.list_runs(), store.runs.list_claimed_runs()
    if as_json:
        typer.echo(json.dumps(runs_json(found, claimed)))
    elif not found:
        typer.echo("no runs yet: start one with mappa train --config configs/quickstart.yaml")
    else:
        open_console().print(runs_table(found, claimed))
