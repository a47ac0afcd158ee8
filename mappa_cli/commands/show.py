"""`mappa show`: a stored run or episode."""

from typing import Annotated

import typer

from mappa_cli.printing.console import open_console
from mappa_core.core.errors import NotFound
from mappa_core.core.settings import Settings


def show(
    what: Annotated[str, typer.Argument(help="A run, or an episode: name, id or prefix.")],
    coach: Annotated[
        bool, typer.Option("--coach", help="Each score's exact prompt and reply, cost, latency.")
    ] = False,
) -> None:
    """Print a run's iterations and episodes, or an episode's whole conversation with scores."""
    from mappa_cli.printing.episode import print_episode
    from mappa_cli.printing.runs import print_run
    from mappa_core.store.opening import opened_store

    console = open_console()
    with opened_store(Settings()) as store:
        try:
            run = store.runs.get_run(what)
        except NotFound:
            print_episode(console, store, store.episodes.get_episode(what), in_full=coach)
        else:
            print_run(console, store, run)
