"""Sandboxes on this machine: each run is handed to a supervisor of our fork server."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import mappa_core
from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Limits, ToolResult
from mappa_core.rollout.sandboxes.supervisor import messages
from mappa_core.rollout.sandboxes.supervisor.messages import Failure, Request

_START_SECONDS = 20.0
_GRACE_SECONDS = 30.0
"""What a supervisor may take beyond the program's wall clock, on a loaded machine."""
_HAND_OVER_SECONDS = 0.01
"""Between two tries to hand a run over while the fork server has too many to take."""
_READ_BYTES = 2**16
_NO_PACKAGES: Mapping[str, Path] = MappingProxyType({})
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from mappa_core.rollout.sandboxes.supervisor import fork_server; "
    "fork_server.main(*sys.argv[2:])"
)


class LocalSandbox:
    """A `Sandbox` with at most `concurrency` runs at once, each under its own supervisor."""

    def __init__(
        self, backend: str, concurrency: int, packages: Mapping[str, Path] = _NO_PACKAGES
    ) -> None:
        """Prepare it for the tier `backend`, with `packages` to import; `start` starts it."""
        self._packages = packages
        self._backend = backend
        self._permits = asyncio.Semaphore(concurrency)
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._starting = asyncio.Lock()
        self.tier: str = backend
        """Which isolation holds, e.g. `bubblewrap+cgroup+seccomp`."""

    async def start(self) -> None:
        """Start the fork server and learn what this machine offers.

        Raises:
            SandboxError: It does not start.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._fork_server = _start_fork_server(self._backend, self._packages, theirs)
        ours.setblocking(False)
        self._control = ours
        try:
            async with asyncio.timeout(_START_SECONDS):
                greeting = await asyncio.get_running_loop().sock_recv(ours, _READ_BYTES)
        except (TimeoutError, ConnectionError):
            greeting = b""
        if not greeting:
            await self.close()
            raise SandboxError(f"{self._backend}: its fork server does not start; see above")
        self.tier = json.loads(greeting)

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        """Run `code` as `main.py`; see `Sandbox`. Cancelling it ends the program.

        Raises:
            SandboxError: The sandbox itself failed.
        """
        if workspace:
            workspace.mkdir(parents=True, exist_ok=True)
        place = str(workspace.absolute()) if workspace else None
        request = Request(code=code, workspace=place, limits=limits)
        async with self._permits:
            reply = await self._reply_to(request)
        return replace(messages.result_of(reply, self._backend), code=code)

    async def _reply_to(self, request: Request) -> ToolResult | Failure:
        connection = await self._connect()
        data = messages.with_length(messages.encode(request))
        try:
            async with asyncio.timeout(request.limits.wall_seconds + _GRACE_SECONDS):
                return messages.decode_reply(await _exchange(connection, data))
        except (TimeoutError, ConnectionError) as error:
            return Failure(reason=f"no report: {error or 'timed out'}")
        except ValueError:  # nothing at all, or it was killed while it said it
            return Failure(reason="its supervisor died")
        finally:
            # Closing is what ends a run that is still going on.
            self._open.discard(connection)
            connection.close()

    async def _connect(self) -> socket.socket:
        async with self._starting:
            try:
                connection = await self._send_connection()
            except ConnectionError:  # the fork server died; a new one does as well
                await self._stop_fork_server()
                await self.start()
                connection = await self._send_connection()
        self._open.add(connection)
        return connection

    async def _send_connection(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                await self._hand_over(theirs)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return ours

    async def _hand_over(self, connection: socket.socket) -> None:
        """Give the fork server its end of a connection, once it has taken some of those before."""
        while self._control is not None:
            try:
                socket.send_fds(self._control, [b"r"], [connection.fileno()])
            except BlockingIOError:
                # Not by waiting for the socket itself, which may be closed meanwhile.
                await asyncio.sleep(_HAND_OVER_SECONDS)
            else:
                return
        raise SandboxError("the sandbox is closed")

    async def close(self) -> None:
        """End what still runs and stop the fork server; safe to call twice."""
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        await self._stop_fork_server()

    async def _stop_fork_server(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._fork_server is not None:
            # It leaves once every supervisor has cleaned up.
            await asyncio.to_thread(self._fork_server.wait)
            self._fork_server = None


def _start_fork_server(
    backend: str, packages: Mapping[str, Path], control: socket.socket
) -> subprocess.Popen[bytes]:
    shown = json.dumps({name: str(path) for name, path in packages.items()})
    package_root = str(Path(mappa_core.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT, package_root, backend, shown],
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        env={},  # no secret of ours is there to be found
        cwd="/",
        start_new_session=True,  # Ctrl-C is for us: we end the runs in order
    )


async def _exchange(connection: socket.socket, request: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, request)
    reply = bytearray()
    while chunk := await loop.sock_recv(connection, _READ_BYTES):
        reply += chunk
    return bytes(reply)
