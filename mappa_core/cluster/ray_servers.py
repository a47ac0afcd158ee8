"""vLLM servers in a Ray cluster: each is an actor's, and requests go to it directly.

    this process ─▶ Ray ─▶ actor in its bundle ─forks─▶ vLLM server ◀─ HTTP ─ this process

The actor dies with its node, the server with the actor; whoever asked it something finds it dead
and has it started again, wherever Ray has put its bundle by then. A machine that is gone resets no
connection: what waits for it is broken off when Ray says that the actor is dead.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import ray
from ray.exceptions import RayActorError, RayError

from mappa_core.cluster.ray_places import Actor, RayPlaces
from mappa_core.cluster.server_host import ServerHost
from mappa_core.cluster.storage import Storage
from mappa_core.core.errors import EngineError
from mappa_core.models.serving.client import ServerDied
from mappa_core.models.serving.fork_server import SCRIPT
from mappa_core.models.serving.server import OwnServer

T = TypeVar("T")

_POLL_SECONDS = 0.5
_LOOK_SECONDS = 5.0
"""Between two looks whether the actor lives."""


class RayServer(OwnServer):
    """A vLLM server of our own on some node, and the only client of it."""

    def __init__(
        self,
        places: RayPlaces,
        bundle: int,
        arguments: Sequence[str],
        log: Path,
        *,
        device: str,
        script: Path = SCRIPT,
        storage: Storage | None = None,
    ) -> None:
        """Prepare it in a bundle; `log` is on the node where that lies.

        `storage` has the checkpoints, where the node does not see the run's files.
        """
        super().__init__(log)
        self._storage = storage
        self._places, self._bundle = places, bundle
        self._arguments, self._device, self._script = tuple(arguments), device, script
        self._host: Actor | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def host(self) -> Actor | None:
        """The actor that owns it."""
        return self._host

    async def start(self, seconds: float) -> None:
        """Have it started and wait until it answers.

        Raises:
            ServerDied: Its actor did, or its node.
            EngineError: It ended early or took longer than `seconds`; the message names the log.
        """
        deadline = time.monotonic() + seconds
        threads = os.environ.get("OMP_NUM_THREADS", "")
        given = ("", str(self.log), self._device, str(self._script), threads)
        self._host = host = self._places.actor(ServerHost, self._bundle, *given)
        try:
            url = await asyncio.wait_for(host.start.remote(self._arguments), seconds)
            self.connect(url)
            while not await self.healthy():
                if await host.ended.remote():
                    raise EngineError(f"the server at {url} ended while starting: {self._where}")
                await self._pause(deadline, seconds)
        except TimeoutError as error:
            raise EngineError(self._too_late(seconds)) from error
        except RayError as error:
            raise ServerDied(f"its actor died while starting: {type(error).__name__}") from error
        self._watch = asyncio.create_task(self._watched(host))

    async def stop(self) -> None:
        """End the actor and its server; safe to call twice, or before `start`."""
        client = self._forgotten()
        if self._watch is not None:
            self._watch.cancel()
        host, self._host = self._host, None
        if host is not None:
            await asyncio.to_thread(ray.kill, host)
        if client is not None:
            await client.close()

    async def readable(self, checkpoint: Path) -> Path:
        """Have its node fetch the files, where they are in a storage."""
        host = self._present()
        return Path(await _asked(host.readable.remote(str(checkpoint), self._storage)))

    def _present(self) -> Actor:
        if self._host is None:
            raise ServerDied("it is not running")
        return self._host

    async def _watched(self, host: Actor) -> None:
        with suppress(RayError):
            while True:
                await host.ended.remote()
                await asyncio.sleep(_LOOK_SECONDS)
        await self.break_off()

    async def _pause(self, deadline: float, seconds: float) -> None:
        if time.monotonic() > deadline:
            raise EngineError(self._too_late(seconds))
        await asyncio.sleep(_POLL_SECONDS)

    def _too_late(self, seconds: float) -> str:
        return (
            f"a vLLM server in the cluster did not answer within {seconds:.0f} s: {self._where}, "
            "or raise its start_seconds"
        )

    @property
    def _where(self) -> str:
        return f"read {self.log} on its node"


async def _asked(asked: Awaitable[T]) -> T:
    """Wait for what an actor was asked; what it raises is raised.

    Raises:
        ServerDied: It died.
    """
    try:
        return await asked
    except RayActorError as error:
        raise ServerDied(f"its actor died: {type(error).__name__}") from error


class RayServers:
    """What servers come from where they are in a cluster."""

    def __init__(
        self,
        places: RayPlaces,
        *,
        device: str,
        script: Path = SCRIPT,
        storage: Storage | None = None,
        first: int = 0,
    ) -> None:
        """Put servers on `places`, the first one in the bundle `first`; as `RayServer`."""
        self._places, self._device, self._script = places, device, script
        self._storage, self._first = storage, first

    def open(self, number: int, arguments: Sequence[str], log: Path) -> RayServer:
        """Prepare the `number`-th server, from 0."""
        return RayServer(
            self._places,
            self._first + number,
            arguments,
            log,
            device=self._device,
            script=self._script,
            storage=self._storage,
        )

    def close(self) -> None:
        """Nothing is left: each server goes with its actor."""
