"""Runs servers that live exactly as long as a command uses them.

    command ──shared lock──▶ use.lock ◀──polls── supervisor ──starts, stops──▶ server
    command ──shared lock──┘

A command that uses a server holds a shared lock on a file. The kernel takes the lock back however
that process ends, `kill -9` included; when the last one is gone, the supervisor (this module, run
as a program) stops the server and ends. So commands share a server whichever ends first, and none
is left over.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from mappa_core.core.errors import OutsideError

POLL_SECONDS = 0.2
STOP_SECONDS = 8.0
START_SECONDS = 120.0
"""At most; on 2 cores Prefect took 10 s on its first start and 4 s later, MLflow 4 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """How to start a server and how to see that it is up."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Added to ours. Secrets belong here: arguments can be read by all users of the machine."""
    directory: Path
    """Where it runs."""
    log: Path
    health_url: str


@contextmanager
def file_lock(path: Path, how: int = fcntl.LOCK_SH) -> Generator[None]:
    """Hold a lock on a file, made where it does not exist; waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def start_shared(server: ServerProcess, lock: Path, after: ExitStack) -> int:
    """Start `server` and wait until it is up; it stops when no process holds `lock`.

    Args:
        server: What to start.
        lock: A file the caller holds a shared lock on.
        after: Closed by the caller once it has let go of `lock`; waits for the server's end.

    Returns:
        The supervisor's process id.

    Raises:
        OutsideError: The server does not come up; the message names its log.
    """
    server.log.parent.mkdir(parents=True, exist_ok=True)
    with server.log.open("a") as log:
        supervisor = subprocess.Popen(
            (sys.executable, "-m", __name__, str(lock), *server.command),
            env={**os.environ, **server.environment},
            cwd=server.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is for the command; its servers stay until it has finished with them.
            start_new_session=True,
        )
    after.callback(_wait, supervisor)
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(server.health_url):
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise OutsideError(f"{server.name} did not start: its log is {server.log}")
        time.sleep(POLL_SECONDS)
    return supervisor.pid


def is_healthy(url: str) -> bool:
    """Whether a server answers at `url` that all is well."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _wait(supervisor: subprocess.Popen[bytes]) -> None:
    # Where another command still uses the server, that one will wait for its end.
    with suppress(subprocess.TimeoutExpired):
        supervisor.wait(STOP_SECONDS)


def supervise(arguments: Sequence[str]) -> int:
    """Run a lock's file and a command, until no process holds the lock; returns its exit code."""
    path, *command = arguments
    with Path(path).open("a") as lock, subprocess.Popen(command) as server:

        def end(*_: object) -> None:
            server.terminate()

        signal.signal(signal.SIGTERM, end)
        while server.poll() is None:
            if _take(lock.fileno()):
                _stop(server)
                return 0
            time.sleep(POLL_SECONDS)
        return server.returncode


def _take(descriptor: int) -> bool:
    """Take the lock if it is free; a command that comes now waits until the server is gone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # The server, what it started, and ourselves: the supervisor began a session of its own.
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
