"""One hardened container: made, started, talked to, gone.

    create ─▶ attach ─▶ start ─▶ our source ─▶ "ready" ─▶ a run ─▶ its reply ─▶ gone by itself

Everything goes through its standard input and output, so nothing of the host is mounted and the
engine may be on another machine.
"""

import asyncio
import secrets
import select
import socket
import struct
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from docker.api.client import APIClient
from docker.errors import APIError, DockerException, NotFound
from docker.types import Ulimit
from requests.exceptions import RequestException

from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes import remote
from mappa_core.rollout.sandboxes.supervisor import messages

P = ParamSpec("P")
T = TypeVar("T")
LABEL = "mappa.sandbox"
_BOOT = f"""
import sys
size = int.from_bytes(sys.stdin.buffer.read({messages.LENGTH_BYTES}))
with open("{messages.HOME}/source.zip", "wb") as file:
    file.write(sys.stdin.buffer.read(size))
sys.path.insert(0, file.name)
from mappa_core.rollout.sandboxes.supervisor import entrypoint
entrypoint.in_container()
"""
_CONFLICT = 409
_START_SECONDS, _END_SECONDS = 60, 10
_STDOUT = 1
_FRAME = struct.Struct(">BxxxL")
_READ_BYTES = 2**16
_FIRST_USER, _USERS = 0x7100_0000, 2**24
_FIRST_MAPPED_USER, _MAPPED_USERS = 10_000, 50_000
_MIB = 2**20
_SUPERVISOR_BYTES, _SUPERVISOR_PROCESSES, _SUPERVISOR_FILES = 64 * _MIB, 8, 256
_SLACK_BYTES, _SLACK_INODES = 4 * _MIB, 1024
_SHARED_MEMORY_BYTES = 16 * _MIB
_ONE_CPU = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A Docker Engine and what we make containers of."""

    client: APIClient
    threads: Executor
    """The client blocks."""
    image: str
    few_users: bool
    """Whether it maps only some 65,000 users into its containers (rootless, userns-remap)."""
    owner: str
    """Marks the containers of one sandbox."""


_TROUBLE = (DockerException, RequestException, OSError)
"""What the engine's client raises; a socket's errors and lateness are among the last."""


@contextmanager
def engine_errors() -> Generator[None]:
    """Turn what goes wrong between us and the engine into the one error of a sandbox.

    Raises:
        SandboxError: In place of what the engine's client raised.
    """
    try:
        yield
    except _TROUBLE as error:
        said = " ".join(str(error).split()) or "no answer in time"
        raise SandboxError(f"docker: {said}") from None


class Ended(SandboxError):
    """A container came to its end before it had said everything."""


@dataclass(slots=True, kw_only=True)
class Container:
    """A container whose supervisor waits for its run.

    To send or read raises `OSError` where the connection is gone.
    """

    id: str
    engine: Engine
    connection: socket.socket
    said: bytearray = field(default_factory=bytearray)
    """What it wrote on standard error."""
    _unread: bytearray = field(default_factory=bytearray)

    async def send(self, data: bytes) -> None:
        """Send one message."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.connection, messages.with_length(data))

    async def read(self, size: int) -> bytes:
        """Read exactly `size` bytes of its standard output.

        Raises:
            Ended: It ended before.
        """
        while len(self._unread) < size:
            kind, length = _FRAME.unpack(await self._received(_FRAME.size))
            data = await self._received(length)
            (self._unread if kind == _STDOUT else self.said).extend(data)
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    async def read_message(self, limit_bytes: int) -> bytes:
        """Read one message.

        Raises:
            SandboxError: It ended before, or wants to send more than `limit_bytes`.
        """
        size = int.from_bytes(await self.read(messages.LENGTH_BYTES))
        if size > limit_bytes:
            raise SandboxError(f"the container sends {size} bytes")
        return await self.read(size)

    def is_waiting(self) -> bool:
        """Whether it is still there; while it waits it says nothing."""
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        return not poller.poll(0)

    async def confirm_end(self) -> None:
        """Have the engine confirm that it ended, and that not only its connection did.

        Raises:
            SandboxError: The engine does not answer, or says that it goes on.
        """
        with engine_errors(), suppress(NotFound):
            wait = self.engine.client.wait
            await in_thread(self.engine, wait, self.id, timeout=_END_SECONDS)

    async def _received(self, size: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < size:
            chunk = await loop.sock_recv(self.connection, min(size - len(data), _READ_BYTES))
            if not chunk:
                said = self.said.decode("utf-8", "backslashreplace").strip()[-300:]
                raise Ended(f"the container ended: {said or 'no word'}")
            data += chunk
        return bytes(data)

    def leave(self) -> None:
        """End its standard input: it ends by itself, and the engine removes it."""
        self.connection.close()

    async def remove(self) -> None:
        """Kill and remove it, whatever it does; safe to call twice.

        An engine that does not answer is no error of its own: a caller that kills a container has
        one already, and where its standard input has ended, so does the container.
        """
        self.leave()
        with suppress(*_TROUBLE):
            await in_thread(self.engine, remove, self.engine.client, self.id)


async def start_container(engine: Engine, limits: Limits) -> Container:
    """Start a container with room for a run of `limits`, ready to be sent one.

    Raises:
        SandboxError: The engine refuses, or the supervisor does not start in there.
    """
    with engine_errors():
        made = await in_thread(engine, _start, engine, limits)
    try:
        with engine_errors():
            async with asyncio.timeout(_START_SECONDS):
                await made.send(remote.source())
                await made.read(len(messages.READY))
    except BaseException:
        await asyncio.shield(made.remove())
        raise
    return made


async def in_thread(engine: Engine, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the engine's client, which blocks, in a thread of its own."""
    work = partial(call, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(engine.threads, work)


def _start(engine: Engine, limits: Limits) -> Container:
    client, user = engine.client, _user(engine)
    made = client.create_container(
        image=engine.image,
        command=["python3", "-I", "-S", "-B", "-c", _BOOT],
        entrypoint=[],
        user=f"{user}:{user}",
        working_dir="/",
        hostname="sandbox",
        stdin_open=True,
        labels={LABEL: engine.owner},
        host_config=client.create_host_config(**hardening(limits, user)),
    )
    try:
        attached = client.attach_socket(
            made["Id"], params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
        connection = socket.socket(fileno=socket.dup(attached.fileno()))
        attached.close()
        connection.setblocking(False)
        client.start(made["Id"])
    except BaseException:
        remove(client, made["Id"])
        raise
    return Container(id=made["Id"], engine=engine, connection=connection)


def hardening(limits: Limits, user: int) -> Mapping[str, object]:
    """What `HostConfig` says of a container: no network, nothing writable but two tmpfs, no rights.

    Its memory is that of the run plus our supervisor's, which keeps the workspace a second time.
    """
    memory = limits.memory_bytes + limits.workspace_bytes + _SUPERVISOR_BYTES
    files = max(limits.open_files, _SUPERVISOR_FILES)
    owned = f"uid={user},gid={user},mode=0700,nosuid,nodev"
    size = limits.workspace_bytes + _SLACK_BYTES
    tmpfs = f"size={size},nr_inodes={limits.inodes + _SLACK_INODES},{owned}"
    return {
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "ipc_mode": "private",
        "shm_size": _SHARED_MEMORY_BYTES,
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": limits.processes + _SUPERVISOR_PROCESSES,
        "nano_cpus": _ONE_CPU,
        "tmpfs": {"/tmp": tmpfs, messages.HOME: tmpfs},  # noqa: S108 (inside the container)
        "ulimits": [
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="nofile", soft=files, hard=files),
        ],
        "log_config": {"Type": "none", "Config": {}},
        "auto_remove": True,
    }


def _user(engine: Engine) -> int:
    """Another one for each container: the kernel counts processes by user, over all containers."""
    if engine.few_users:
        return _FIRST_MAPPED_USER + secrets.randbelow(_MAPPED_USERS)
    return _FIRST_USER + secrets.randbelow(_USERS)


def remove(client: APIClient, name: str) -> None:
    """Kill and remove a container; one that is gone already is no error."""
    try:
        client.remove_container(name, force=True)
    except NotFound:
        return
    except APIError as error:
        if error.response is None or error.response.status_code != _CONFLICT:
            raise
        # It is being removed already: wait until it is.
        with suppress(NotFound):
            client.wait(name, condition="removed")
