"""The commands about configuration: `mappa config show | diff | docs`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import Json
from mappa_cli.commands.running import as_yaml, stored_run
from mappa_cli.printing.console import make_table, open_console
from mappa_core.app.config_files import differences, load_config
from mappa_core.core.records.provenance import run_differences

config = typer.Typer(help="What a run is, or was, told to do.", no_args_is_help=True)

Which = Annotated[str, typer.Argument(help="A run (name, id or prefix), or a YAML file.")]


@config.command("show")
def show(what: Which, as_json: Json = False) -> None:
    """Print a stored run's configuration, or a file's with every default filled in."""
    values = _values(what)
    typer.echo(json.dumps(values) if as_json else as_yaml(values))


@config.command("diff")
def diff(one: Which, other: Which, as_json: Json = False) -> None:
    """Print the keys in which two runs or files differ, and what two runs were made with."""
    found = [*differences(_values(one), _values(other)), *_made_otherwise(one, other)]
    if as_json:
        typer.echo(json.dumps({key: [before, after] for key, before, after in found}))
        return
    if not found:
        typer.echo("no difference")
        return
    rows = [(key, json.dumps(before), json.dumps(after)) for key, before, after in found]
    open_console().print(make_table("", ("key", one, other), rows))


@config.command("docs")
def docs() -> None:
    """Print the reference of every key, as in docs/configuration.md."""
    from mappa_core.app.config_reference import page

    typer.echo(page(), nl=False)


def _made_otherwise(one: str, other: str) -> list[tuple[str, str, str]]:
    """What two stored runs were made with, as far as it differs; a file says nothing of it."""
    if any(Path(what).is_file() for what in (one, other)):
        return []
    found = run_differences(stored_run(one).provenance, stored_run(other).provenance)
    return [(f"provenance.{each.name}", each.before, each.after) for each in found]


def _values(what: str) -> dict[str, object]:
    """What a file says, resolved; or what was recorded with a run, as it was recorded."""
    if Path(what).is_file():
        return load_config(Path(what)).model_dump(mode="json")
    return dict(stored_run(what).config)
