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
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa_core.core.errors import EngineError
from mappa_core.models.serving.client import VllmClient
from mappa_core.models.serving.fork_server import NOTHING, ForkServer

_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.25


class Server(VllmClient):
    """A vLLM server of our own, and the only client of it."""

    def __init__(
        self,
        fork_server: ForkServer,
        arguments: Sequence[str],
        log: Path,
        *,
        variables: Mapping[str, str] = NOTHING,
    ) -> None:
        super().__init__(f"log: {log}")
        self._fork_server = fork_server
        self._arguments, self._variables = tuple(arguments), variables
        self._liveness: socket.socket | None = None
        self._directory: Path | None = None
        self.log = log

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
        """Start the process and wait until it answers.

        Raises:
            EngineError: It ended early or took longer than `seconds`; the message names the log.
        """
        self._open(Path(tempfile.mkdtemp(prefix="mappa-vllm-")))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        arguments = (*self._arguments, "--uds", str(self.address))
        self._liveness = self._fork_server.fork(arguments, self.log, self._variables)
        await self._until_healthy(self._liveness, seconds)

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
        liveness, self._liveness = self._liveness, None
        directory, self._directory = self._directory, None
        try:
            if liveness is not None:
                await asyncio.to_thread(_end, liveness)
            if client is not None:
                await client.close()
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)


def _has_ended(liveness: socket.socket, *, within_seconds: float = 0) -> bool:
    # Not `select.select`: it refuses descriptors from 1024 on.
    poll = select.poll()
    poll.register(liveness, select.POLLIN)
    return bool(poll.poll(within_seconds * 1000))


def _end(liveness: socket.socket) -> None:
    with liveness:
        liveness.shutdown(socket.SHUT_WR)
        _has_ended(liveness, within_seconds=_STOP_SECONDS)
