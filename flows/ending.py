"""How flows and commands end when something outside ends them.

    Ctrl-C     cancels the flow                           exit code 130
    SIGTERM    docker stop, systemd, a run cancelled in   exit code 143
               Prefect: cancels it, too
    Prefect    went away in the middle                    one line, exit code 1

Whatever it is, what is open is closed, and the run in the store says how it ended.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import httpx

from mappa_core.core.errors import OutsideError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
TERMINATED = 143
"""Exit code after SIGTERM."""

Result = TypeVar("Result")


def run_flow(flow: Coroutine[Any, Any, Result]) -> Result:
    """Run a flow as a command; returns what it returns.

    Raises:
        OutsideError: Prefect went away.
        SystemExit: SIGTERM came; the code is `TERMINATED`.
    """
    from prefect.exceptions import TerminationSignal

    with prefect_there():
        try:
            return asyncio.run(flow)
        except (TerminationSignal, asyncio.CancelledError):
            raise SystemExit(TERMINATED) from None


@contextmanager
def prefect_there() -> Generator[None]:
    """Turn what Prefect's client raises where its server is away into one line.

    Raises:
        OutsideError: Prefect does not answer, or refuses.
    """
    try:
        yield
    except (httpx.HTTPError, RuntimeError) as error:
        # Before a flow begins, Prefect wraps what its client says.
        cause = error if isinstance(error, httpx.HTTPError) else error.__cause__
        if not isinstance(cause, httpx.HTTPError):
            raise
        raise OutsideError(
            f"Prefect went away ({type(cause).__name__}): see that it runs, then repeat the "
            "command, or go on with `mappa train --resume RUN`"
        ) from error


@contextmanager
def sigterm_cancels() -> Generator[None]:
    """Let SIGTERM cancel the task that is in the block, as Ctrl-C does.

    Prefect's handler raises in whatever runs just then. In a callback of the event loop that is
    logged and lost, and nothing stops; so the loop hears the signal as well. Inside a flow that the
    block starts Prefect's handler is there again, and either may be first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, inside = asyncio.get_running_loop(), [asyncio.current_task()]
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, _cancel, inside)
    try:
        yield
    finally:
        inside.clear()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


def _cancel(inside: list[asyncio.Task[object] | None]) -> None:
    # Once, and only inside the block: closing is not to be cancelled as well.
    while inside:
        if (task := inside.pop()) is not None:
            task.cancel()


@contextmanager
def sigterm_unwinds() -> Generator[None]:
    """Let SIGTERM leave the block as `SystemExit`, so that servers are stopped and files removed.

    Inside a flow `run_flow` does the same.
    """
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(*_: object) -> NoReturn:
    raise SystemExit(TERMINATED)
