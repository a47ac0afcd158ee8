"""The process that vLLM servers are forked from, as its parent and other commands see it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from mappa_core.core.errors import EngineError

NOTHING: Mapping[str, str] = MappingProxyType({})

KEPT_SECONDS = 60.0
"""How long one that is kept may take to answer: it imports vLLM first."""

TURN = "mappa_turn"
"""In vLLM's `--additional-config`: servers that have the same number compute a step in turns."""

SCRIPT = Path(__file__).with_name("fork_server_script.py")
_prestarted: ContextVar["ForkServer | None"] = ContextVar("fork_server", default=None)


class ForkServer:
    """Starts the process that forks servers, when the first is asked for or before."""

    def __init__(
        self,
        script: Path,
        environment: Mapping[str, str],
        log: Path,
        *,
        kept: socket.socket | None = None,
    ) -> None:
        """Start nothing yet; `kept` is a connection to one that runs, which is asked first."""
        self._script = script
        self.environment: Mapping[str, str] = dict(environment)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._control = kept

    @property
    def pid(self) -> int | None:
        """The process, if it was started here."""
        return None if self._process is None else self._process.pid

    def start(self, listener: socket.socket | None = None) -> socket.socket:
        """Start it, unless it runs; returns the socket that carries requests.

        Others ask it through `listener`.
        """
        ended = self._process is not None and self._process.poll() is not None
        if self._control is not None and not ended:
            return self._control
        self.close()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening = () if listener is None else (listener.fileno(),)
        with theirs, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # Its own directory is not on its path: there are modules with common names in it.
                (sys.executable, "-P", str(self._script), *map(str, listening)),
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=self.environment,
                pass_fds=listening,
                start_new_session=True,
            )
        return self._control

    def fork(
        self, arguments: Sequence[str], log: Path, variables: Mapping[str, str] = NOTHING
    ) -> socket.socket:
        """Ask for a server, with `variables` of its own; returns our end of its liveness socket.

        The server is ended when the returned end is closed or shut down; the other end closes
        when the server has ended.

        Raises:
            EngineError: The process ended before it could be asked.
        """
        request = json.dumps(
            {
                "arguments": list(arguments),
                "directory": str(Path.cwd()),
                "log": str(log),
                # Two shells of one machine often differ in it.
                "variables": {"PATH": self.environment.get("PATH", os.defpath), **variables},
            }
        )
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send(request.encode(), theirs)
            except OSError as error:
                ours.close()
                raise EngineError(f"what starts vLLM's servers ended: read {self.log}") from error
        return ours

    def _send(self, request: bytes, end: socket.socket) -> None:
        try:
            socket.send_fds(self.start(), [request], [end.fileno()])
        except OSError:
            if self._process is not None:
                raise
            # It was kept by another command, which has ended.
            self.close()
            socket.send_fds(self.start(), [request], [end.fileno()])

    def close(self) -> None:
        """Let it end; its servers live on. Safe to call twice."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def prestarted(environment: Mapping[str, str], log: Path) -> Generator[ForkServer]:
    """Import vLLM in the process that servers are forked from, for those started inside."""
    fork_server = _found_or_new(environment, log)
    fork_server.start()
    token = _prestarted.set(fork_server)
    try:
        yield fork_server
    finally:
        _prestarted.reset(token)
        fork_server.close()


@contextmanager
def kept(environment: Mapping[str, str], log: Path) -> Generator[None]:
    """Keep one while the block lasts, for commands that log there and have this environment.

    They may have another PATH.

    The block begins when it has imported vLLM. Another one that was kept there is found no longer.

    Raises:
        EngineError: It ended, or took longer than `KEPT_SECONDS`.
    """
    address = _address(log)
    address.parent.mkdir(parents=True, exist_ok=True)
    address.unlink(missing_ok=True)
    fork_server = ForkServer(SCRIPT, environment, log)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        _at(address, listener.bind)
        address.chmod(0o600)
        listener.listen()
        fork_server.start(listener)
    mine = address.stat().st_ino
    try:
        answer = _kept(environment, address)
        if answer is None:
            raise EngineError(f"what starts vLLM's servers ended: read {log}")
        answer.close()
        yield
    finally:
        fork_server.close()
        with suppress(FileNotFoundError):
            if address.stat().st_ino == mine:
                address.unlink()


def open_fork_server(environment: Mapping[str, str], log: Path) -> ForkServer:
    """What servers come from: the one that was `prestarted` or is `kept`, or one of its own.

    Variables that libraries set in this process since then (scikit-learn has two of `KMP_`) are no
    reason for another.
    """
    started = _prestarted.get()
    if started is not None and started.environment.items() <= environment.items():
        return started
    return _found_or_new(environment, log)


def _found_or_new(environment: Mapping[str, str], log: Path) -> ForkServer:
    return ForkServer(SCRIPT, environment, log, kept=_kept(environment, _address(log)))


def _kept(environment: Mapping[str, str], address: Path) -> socket.socket | None:
    """Connect to one that is kept for servers of this environment; None where there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(KEPT_SECONDS)
    try:
        _at(address, connection.connect)
        connection.send(json.dumps(dict(environment)).encode())
        fits = connection.recv(16) == b"yes"
    except OSError:
        fits = False
    if not fits:
        connection.close()
        return None
    connection.settimeout(None)
    return connection


def _at(address: Path, do: Callable[[str], None]) -> None:
    """Bind or connect to an address of any length; those of Unix sockets end after 107 bytes."""
    directory = os.open(address.parent, os.O_PATH)
    try:
        do(f"/proc/self/fd/{directory}/{address.name}")
    finally:
        os.close(directory)


def _address(log: Path) -> Path:
    return log.with_suffix(".socket")
