"""The commands about configuration: `mappa config show | diff | docs`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mappa_cli.commands.options import Json
from mappa_cli.printing.console import open_console
from mappa_core.app.config_files import differences, load_config
from mappa_core.core.settings import Settings

config = typer.Typer(help="What a run is, or was, told to do.", no_args_is_help=True)

Which = Annotated[str, typer.Argument(help="A run (name, id or prefix), or a YAML file.")]


@config.command("show")
def show(what: Which, as_json: Json = False) -> None:
    """Print a stored run's configuration, or a file's with every default filled in."""
    values = _values(what)
    typer.echo(json.dumps(values) if as_json else _as_yaml(values))


@config.command("diff")
def diff(one: Which, other: Which, as_json: Json = False) -> None:
    """Print the keys in which two runs or files differ."""
    found = differences(_values(one), _values(other))
    if as_json:
        typer.echo(json.dumps({key: [before, after] for key, before, after in found}))
        return
    if not found:
        typer.echo("no difference")
        return
    table = Table("key", one, other)
    for key, before, after in found:
        table.add_row(key, json.dumps(before), json.dumps(after))
    open_console().print(table)


@config.command("docs")
def docs() -> None:
    """Print the reference of every key, as in docs/configuration.md."""
    from mappa_core.app.config_reference import page

    typer.echo(page(), nl=False)


def _values(what: str) -> dict[str, object]:
    """What a file says, resolved; or what was recorded with a run, as it was recorded."""
    if Path(what).is_file():
        return load_config(Path(what)).model_dump(mode="json")
    from mappa_core.app.databases import opened_store

    with opened_store(Settings()) as store:
        return dict(store.runs.get_run(what).config)


def _as_yaml(values: dict[str, object]) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(values)).rstrip()
