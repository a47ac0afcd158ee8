"""The entry point of `mappa`: sets glibc's tunables, then runs the command line."""

from typing import NoReturn

from mappa_core.core.heap import start_with_tunables


def command() -> NoReturn:
    """Run one command in a process that has `heap.TUNABLES`."""
    start_with_tunables()
    # It takes a second to import, so only once the process has them.
    from mappa_cli.main import command as rest

    rest()
