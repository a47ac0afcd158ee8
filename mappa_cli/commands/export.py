"""`mappa export`: a run as files."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import RunName
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted


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
    from mappa_core.evaluate.trajectories import write_trajectories
    from mappa_core.store.opening import opened_store

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
