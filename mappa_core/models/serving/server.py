"""One vLLM server process: start it, wait until it answers, know when it has died, stop it.

It listens on a Unix socket in a directory of this user alone: no port to collide on, and vLLM's
development endpoints, which change weights, are out of every other user's reach.
"""

import asyncio
import select
import shutil
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mappa_core.core.errors import EngineError
from mappa_core.models.serving.client import VllmClient
from mappa_core.models.serving.fork_server import NOTHING, ForkServer

_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.25
_LONGEST_SOCKET_PATH, _SOCKET_NAME = 107, 36
"""Bytes of a socket's path that Linux takes, and of the names, UUIDs, that vLLM gives."""


class OwnServer(VllmClient, ABC):
    """A vLLM server of our own, wherever it is, and the only client of it."""

    def __init__(self, log: Path) -> None:
        super().__init__(f"log: {log}")
        self.log = log

    @abstractmethod
    async def start(self, seconds: float) -> None:
        """Start it and wait until it answers.

        Raises:
            ServerDied: What it is on died meanwhile.
            EngineError: It ended early or took longer than `seconds`; the message names the log.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End it and all it started; safe to call twice, or before `start`."""

    async def readable(self, checkpoint: Path) -> Path:
        """Say where the server finds the files of a checkpoint of ours.

        Raises:
            ServerDied: What it is on died meanwhile.
            ClusterError: It cannot have them.
        """
        return checkpoint.resolve()


class Server(OwnServer):
    """A process of this machine."""

    def __init__(
        self,
        fork_server: ForkServer,
        arguments: Sequence[str],
        log: Path,
        *,
        variables: Mapping[str, str] = NOTHING,
    ) -> None:
        super().__init__(log)
        self._fork_server = fork_server
        self._arguments, self._variables = tuple(arguments), variables
        self._liveness: socket.socket | None = None
        self._directory: Path | None = None

    @property
    def address(self) -> Path:
        """The Unix socket it listens on.

        Raises:
            EngineError: It is not running.
        """
        if self._directory is None:
            raise EngineError("the vLLM server is not running: call start() first")
        return self._directory / "socket"

    async def start(self, seconds: float) -> None:
        """Start the process, unless it was begun, and wait until it answers.

        Raises:
            EngineError: It ended early or took longer than `seconds`; the message names the log.
        """
        await self._until_healthy(self.begin(), seconds)

    def begin(self) -> socket.socket:
        """Start the process, if there is none; returns what shows that it lives.

        Raises:
            EngineError: What it is forked from has ended; the message names the log.
        """
        if self._liveness is None:
            self._open(Path(tempfile.mkdtemp(prefix="mappa-vllm-")))
            self.log.parent.mkdir(parents=True, exist_ok=True)
            arguments = (*self._arguments, "--uds", str(self.address))
            variables = {**_sockets_in(self.address.parent), **self._variables}
            self._liveness = self._fork_server.fork(arguments, self.log, variables)
        return self._liveness

    def _open(self, directory: Path) -> None:
        """Be the client of the socket in `directory`."""
        self._directory = directory
        self.connect("http://vllm", socket=str(self.address))

    async def _until_healthy(self, liveness: socket.socket, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not await self.healthy():
            if _has_ended(liveness):
                raise EngineError(
                    f"the vLLM server ended while starting: read {self.log}, or, where that is "
                    f"missing, {self._fork_server.log}"
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the vLLM server did not answer within {seconds:.0f} s: read {self.log}, "
                    "or raise its start_seconds"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        """End the process and all it started; safe to call twice, or before `start`."""
        # Forgotten before anything is waited for: cancelled here, it is stopped all the same.
        client = self._forgotten()
        liveness, directory = self._given_up()
        try:
            if liveness is not None:
                await asyncio.to_thread(_end, liveness)
            if client is not None:
                await client.close()
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

    def is_started_with(self, arguments: Sequence[str], log: Path) -> bool:
        """Tell whether this is what it is started with."""
        return self._arguments == tuple(arguments) and self.log == log

    def abandon(self) -> None:
        """End the process of a server that was begun and never asked anything."""
        liveness, directory = self._given_up()
        if liveness is not None:
            _end(liveness)
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _given_up(self) -> tuple[socket.socket | None, Path | None]:
        liveness, self._liveness = self._liveness, None
        directory, self._directory = self._directory, None
        return liveness, directory


class Servers(Protocol):
    """What an engine's servers come from."""

    def open(self, number: int, arguments: Sequence[str], log: Path) -> OwnServer:
        """Prepare the `number`-th server, from 0, to be started with `arguments`."""
        ...

    def close(self) -> None:
        """Let go of what starts them; safe to call twice."""
        ...


class Elsewhere(Protocol):
    """Places for servers on other machines."""

    @property
    def device(self) -> str:
        """What computes there: `cpu` or `cuda`."""
        ...

    def servers(self, device: str) -> Servers:
        """Give what servers that compute on `device` come from."""
        ...


class ForkedServers:
    """Servers of this machine, forked from one process."""

    def __init__(self, fork_server: ForkServer, devices: Sequence[tuple[str, ...]] = ()) -> None:
        """Give each server its GPUs, by their names; none: those that this process sees."""
        self._fork_server, self._devices = fork_server, devices
        self._begun: dict[int, Server] = {}

    def begin(self, number: int, arguments: Sequence[str], log: Path) -> None:
        """Start the `number`-th server before it is opened; raises as `Server.begin`."""
        server = self.open(number, arguments, log)
        server.begin()
        self._begun[number] = server

    def open(self, number: int, arguments: Sequence[str], log: Path) -> Server:
        """Prepare the `number`-th server, from 0, or give the one that was begun like this.

        One that was begun in another way is ended.
        """
        begun = self._begun.pop(number, None)
        if begun is not None:
            if begun.is_started_with(arguments, log):
                return begun
            begun.abandon()
        gpus = self._devices[number] if self._devices else ()
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        return Server(self._fork_server, arguments, log, variables=seen)

    def close(self) -> None:
        """Let the process end, and what was begun and nobody opened."""
        while self._begun:
            self._begun.popitem()[1].abandon()
        self._fork_server.close()


def _sockets_in(directory: Path) -> dict[str, str]:
    """Variables by which vLLM makes its own sockets in a directory; it never removes them.

    Where the directory's path is too long for that, vLLM makes them among the temporary files.
    """
    length = len(bytes(directory)) + len("/") + _SOCKET_NAME
    return {"VLLM_RPC_BASE_PATH": str(directory)} if length <= _LONGEST_SOCKET_PATH else {}


def _has_ended(liveness: socket.socket, *, within_seconds: float = 0) -> bool:
    # Not `select.select`: it refuses descriptors from 1024 on.
    poll = select.poll()
    poll.register(liveness, select.POLLIN)
    return bool(poll.poll(within_seconds * 1000))


def _end(liveness: socket.socket) -> None:
    with liveness:
        liveness.shutdown(socket.SHUT_WR)
        _has_ended(liveness, within_seconds=_STOP_SECONDS)
