"""`mappa report RUN`: the run's page, from the rows in the store."""

from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import RunName, check_file
from mappa_core.core.settings import Settings


def report_command(
    run: RunName,
    to: Annotated[
        Path | None, typer.Option("--to", help="The file; default RUN.html in this folder.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run: curves, costs, actions worth reading."""
    from mappa_core.evaluate.run_page import html
    from mappa_core.evaluate.run_story import read_story
    from mappa_core.store.opening import opened_store

    if to is not None:
        check_file(to, "--to")
    with opened_store(Settings()) as store:
        story = read_story(store, store.runs.get_run(run))
    path = to or Path(f"{story.run.name}.html")
    path.write_text(html(story), "utf-8")
    typer.echo(str(path))
