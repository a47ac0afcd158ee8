"""`mappa problems`: the problem files that a preset names."""

from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import Overrides

problems = typer.Typer(help="The problem files that a preset names.", no_args_is_help=True)


@problems.callback()
def _group() -> None:
    """Keep `fetch` a command of its own, though it is the only one."""


@problems.command("fetch")
def fetch(
    config: Annotated[Path, typer.Option("--config", help="The preset that names them.")],
    overrides: Overrides = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Another folder they come from: https://..., file:///FOLDER, or "
            "hf://datasets/OWNER/NAME@REVISION. Hashes must be the same.",
        ),
    ] = None,
) -> None:
    """Fetch a preset's problem files to where it names them, and check their hashes."""
    from mappa_core.app.config_files import load_config
    from mappa_core.rollout.problems.published import SOURCE, fetch_problems

    loaded = load_config(config, overrides or ())
    for each in fetch_problems(loaded.problems, source or SOURCE):
        came = "was there" if each.source is None else f"from {each.source}"
        typer.echo(f"{each.path}: {came}")
    folder = loaded.problems.folder
    if folder is not None and not (folder / "data_resplit").is_dir():
        typer.echo(
            f"{folder}: DSBench's CSV files belong here and are not published with these "
            "(docs/evaluation.md says where they are)"
        )
