"""Begins a command's process, with the heap that a learner wants."""

from typing import NoReturn

from mappa_core.core.heap import start_with_tunables


def command() -> NoReturn:
    """Be the process of one command, as `mappa_cli.main` is.

    That takes a second to import, so the process starts again before.
    """
    start_with_tunables()
    from mappa_cli.main import command as rest

    rest()
