"""The process that vLLM servers are forked from, as its parent sees it."""

import json
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from mappa_core.core.errors import EngineError

NOTHING: Mapping[str, str] = MappingProxyType({})

SCRIPT = Path(__file__).with_name("fork_server_script.py")
_prestarted: ContextVar["ForkServer | None"] = ContextVar("fork_server", default=None)


class ForkServer:
    """Starts the process that forks servers, when the first is asked for or before."""

    def __init__(self, script: Path, environment: Mapping[str, str], log: Path) -> None:
        self._script = script
        self.environment: Mapping[str, str] = dict(environment)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process, if it was started."""
        return None if self._process is None else self._process.pid

    def start(self) -> socket.socket:
        """Start it, unless it runs; returns the socket that carries requests."""
        if self._process is not None and self._control is not None and self._process.poll() is None:
            return self._control
        self.close()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # Its own directory is not on its path: there are modules with common names in it.
                (sys.executable, "-P", str(self._script)),
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=self.environment,
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
        control = self.start()
        request = json.dumps(
            {"arguments": list(arguments), "log": str(log), "variables": dict(variables)}
        )
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(control, [request.encode()], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise EngineError(f"what starts vLLM's servers ended: read {self.log}") from error
        return ours

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
def prestarted(environment: Mapping[str, str], log: Path) -> Generator[None]:
    """Import vLLM in the process that servers are forked from, for those started inside."""
    fork_server = ForkServer(SCRIPT, environment, log)
    fork_server.start()
    token = _prestarted.set(fork_server)
    try:
        yield
    finally:
        _prestarted.reset(token)
        fork_server.close()


def open_fork_server(environment: Mapping[str, str], log: Path) -> ForkServer:
    """What servers come from: the one that was `prestarted`, or one of its own.

    Variables that libraries set in this process since then (scikit-learn has two of `KMP_`) are no
    reason for another.
    """
    started = _prestarted.get()
    if started is not None and started.environment.items() <= environment.items():
        return started
    return ForkServer(SCRIPT, environment, log)
