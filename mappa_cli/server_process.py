"""Servers that live exactly as long as somebody uses them.

    command ──shared lock──▶ use.lock ◀──polls── keeper ──starts, stops──▶ server
    command ──shared lock──┘

Whoever uses a server holds a shared lock on a file. The kernel takes it back however that process
ends, `kill -9` included; when the last one is gone, the keeper (this module, run as a program)
stops the server and ends. So commands share a server whichever ends first, and none is left over.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from mappa_core.core.errors import OutsideError

POLL_SECONDS = 0.2
STOP_SECONDS = 8.0
START_SECONDS = 120.0
"""At most; on 2 cores Prefect took 10 s on its first start and 4 s later, MLflow 4 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to start a server and how to see that it is up."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Added to ours. Secrets belong here: arguments can be read by everybody on the machine."""
    directory: Path
    """Where it runs."""
    log: Path
    health_url: str


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_SH) -> Generator[None]:
    """Hold a lock on a file, made where it does not exist; waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def keep(server: Server, lock: Path, after: ExitStack) -> int:
    """Start `server` and wait until it is up; it stops when nobody holds `lock`.

    Args:
        server: What to start.
        lock: A file the caller holds a shared lock on.
        after: Closed by the caller once it has let go of `lock`; waits for the server's end.

    Returns:
        The keeper's process id.

    Raises:
        OutsideError: The server does not come up; the message names its log.
    """
    server.log.parent.mkdir(parents=True, exist_ok=True)
    with server.log.open("a") as log:
        keeper = subprocess.Popen(
            (sys.executable, "-m", __name__, str(lock), *server.command),
            env={**os.environ, **server.environment},
            cwd=server.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is for the command; its servers stay until it has finished with them.
            start_new_session=True,
        )
    after.callback(_wait, keeper)
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(server.health_url):
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise OutsideError(f"{server.name} did not start: its log is {server.log}")
        time.sleep(POLL_SECONDS)
    return keeper.pid


def is_healthy(url: str) -> bool:
    """Whether something answers at `url` that all is well."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _wait(keeper: subprocess.Popen[bytes]) -> None:
    try:
        keeper.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # Another command still uses the server, and will be the one to stop it.
        return


def main(arguments: Sequence[str]) -> int:
    """The keeper: run a command until nobody holds the lock; returns its exit code."""
    path, *command = arguments
    with Path(path).open("a") as lock, subprocess.Popen(command) as server:
        signal.signal(signal.SIGTERM, partial(_end, server))
        while server.poll() is None:
            if _take(lock.fileno()):
                _stop(server)
                return 0
            time.sleep(POLL_SECONDS)
        return server.returncode


def _end(server: subprocess.Popen[bytes], *_: object) -> None:
    server.terminate()


def _take(descriptor: int) -> bool:
    """Take the lock if nobody holds it; whoever comes now waits until the server is gone."""
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
        # The server, what it started, and ourselves: the keeper began a session of its own.
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
