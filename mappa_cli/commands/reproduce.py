"""`mappa reproduce mathchat`: the paper's experiment, and first what it would take."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import Json
from mappa_cli.printing.console import make_table, open_console
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

PRESETS = {"mathchat": "configs/mathchat_paper.yaml"}


def reproduce(
    what: Annotated[str, typer.Argument(help="mathchat.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides of the preset.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take and could show, and stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repeat the paper's experiment; start with --dry-run."""
    config = _preset(what, overrides or ())
    if not dry_run:
        raise ConfigError(
            f"look at `mappa reproduce {what} --dry-run` first, then start it with: "
            f"mappa train --config {PRESETS[what]}"
        )
    from mappa_core.app.estimate import estimate

    lines = estimate(config, Settings())
    if as_json:
        typer.echo(json.dumps([[line.name, line.value, line.unit] for line in lines]))
        return
    title = f"{config.name}: {config.rollout.iterations} iterations of {config.model}"
    rows = [(line.name, f"{line.value:,.2f}", line.unit, line.because) for line in lines]
    table = make_table(title, ("figure", "value", "unit", "because"), rows)
    for column in table.columns:
        column.overflow = "fold"
    open_console().print(table)


def _preset(what: str, overrides: Sequence[str]) -> TrainConfig:
    if what not in PRESETS:
        raise ConfigError(f"nothing is called {what} here: choose from {', '.join(PRESETS)}")
    return load_config(Path(PRESETS[what]), overrides)
