"""The vLLM server of a local coach: started when it is first wanted, shared, brought back.

first coach ─┐
second coach ─┼─▶ places (server.calls at once) ─▶ one server on a Unix socket, or in a cluster
audit ────────┘
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import httpx2
import openai

from mappa_core.coach.config import CoachModelConfig, ServerConfig
from mappa_core.core.errors import EngineError
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted
from mappa_core.models.device import resolve_device
from mappa_core.models.resolve import resolve_model
from mappa_core.models.serving.client import ServerDied
from mappa_core.models.serving.command import cpu_arguments, environment, gpu_cache_bytes
from mappa_core.models.serving.fork_server import open_fork_server
from mappa_core.models.serving.server import Elsewhere, ForkedServers, OwnServer, Servers


def arguments(model: Path, name: str, config: ServerConfig, device: str) -> tuple[str, ...]:
    """List what the server is started with."""
    common = (
        *("--model", str(model), "--served-model-name", name),
        *("--dtype", config.dtype, "--max-model-len", str(config.max_model_length)),
        # Sampling is what the request says, not what came with the weights.
        *("--generation-config", "vllm"),
        # An agent's rubric is read once.
        "--enable-prefix-caching",
        # A grammar that lets white space run would let a reply run.
        "--structured-outputs-config",
        json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
        # Says with each answer how much of its prompt was cached.
        "--enable-prompt-tokens-details",
        *("--disable-uvicorn-access-log", "--disable-log-stats"),
    )
    if device == "cpu":
        return (*common, *cpu_arguments(config.max_model_length, config.kv_cache_gib, config.calls))
    cache = gpu_cache_bytes(model, config.max_model_length, config.kv_cache_gib, config.dtype)
    return (
        *common,
        # So much must be free when it starts. Its cache is said: what it would measure beside
        # engines that load, or in a restart beside engines that play, is theirs as well.
        *("--gpu-memory-utilization", f"{config.gpu_memory_utilization:.3f}"),
        *("--kv-cache-memory-bytes", str(cache)),
        *("--max-num-seqs", str(config.calls)),
    )


_MOVE_SECONDS = 1.0
"""Between two tries to start it on another node."""

_log = logging.getLogger(__name__)


class CoachServer:
    """Keeps one server for all local coaches of this process that have the same `server_key`."""

    def __init__(
        self,
        config: CoachModelConfig,
        settings: Settings,
        *,
        elsewhere: Elsewhere | None = None,
        number: int = 0,
    ) -> None:
        """Prepare it for the coach of `config`.

        Where it is `elsewhere`, it is the `number`-th there, from 0.
        """
        self._config, self._settings = config, settings
        self.elsewhere, self.number = elsewhere, number
        self._places = asyncio.Semaphore(config.server.calls)
        self._changing = asyncio.Lock()
        self._server: OwnServer | None = None
        self._servers: Servers | None = None
        self._client: openai.AsyncOpenAI | None = None
        self._restarts_left = config.server.restarts
        self._heard = time.monotonic()
        self.users = 0
        """Coaches that have not closed it."""

    @property
    def silent_seconds(self) -> float:
        """Measure how long no token came, of any call."""
        return time.monotonic() - self._heard

    def hear(self) -> None:
        """Note that the server works: a token came, or a call begins after none was under way."""
        self._heard = time.monotonic()

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[openai.AsyncOpenAI]:
        """Hold one of the places; yields the client of a server that runs.

        Raises:
            EngineError: It does not start.
        """
        async with self._places:
            yield await self.running()

    async def running(self) -> openai.AsyncOpenAI:
        """Start the server unless it runs; returns its client.

        Raises:
            EngineError: It does not start.
            ModelNotFound: There is no such model.
        """
        async with self._changing:
            if self._client is None:
                self._client = await self._started()
            return self._client

    async def bring_back(self, client: openai.AsyncOpenAI) -> None:
        """Restart the server behind `client` if it died, once for all calls that saw it.

        Raises:
            EngineError: It died too often, or does not start.
        """
        async with self._changing:
            if self._client is not client or self._server is None or await self._server.healthy():
                return
            self._client = await self._restarted(self._server.log)

    async def _restarted(self, log: Path) -> openai.AsyncOpenAI:
        """Start it again, as often as it may die: it can be killed while it starts, too."""
        why: EngineError | None = None
        while self._restarts_left:
            self._restarts_left -= 1
            await self._stop()
            try:
                return await self._started()
            except EngineError as error:
                why = error
        died = counted(self._config.server.restarts + 1, "time")
        raise EngineError(
            f"the coach's server died {died}: read {log}; mappa train --resume goes on from here"
        ) from why

    async def close(self) -> None:
        """Stop the server, if it runs."""
        async with self._changing:
            await self._stop()
            if self._servers is not None:
                self._servers.close()

    async def _started(self) -> openai.AsyncOpenAI:
        server = self._server = self._server or await asyncio.to_thread(self._prepared)
        try:
            await self._start(server)
        except BaseException:
            await server.stop()
            raise
        self.hear()
        base_url, socket = server.reached_at
        transport = httpx2.AsyncHTTPTransport(
            uds=socket,
            # One kept alive may be closed just as it is used again, which would look like a death.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )
        return openai.AsyncOpenAI(
            api_key="none",
            base_url=f"{base_url}/v1",
            max_retries=0,
            timeout=None,
            http_client=httpx2.AsyncClient(transport=transport, timeout=None),
        )

    async def _start(self, server: OwnServer) -> None:
        """Start it, again where its node dies: Ray finds another one for its place."""
        until = time.monotonic() + self._config.server.start_seconds
        while True:
            try:
                return await server.start(until - time.monotonic())
            except ServerDied as error:
                await server.stop()
                _log.warning("the coach's server did not start: %s", error)
                if time.monotonic() + _MOVE_SECONDS > until:
                    raise EngineError(f"the coach's server does not start: {error}") from error
            await asyncio.sleep(_MOVE_SECONDS)

    def _prepared(self) -> OwnServer:
        config, settings = self._config.server, self._settings
        model = resolve_model(self._config.model, settings.models)
        if self.elsewhere is None:
            device = resolve_device(config.device)
            told = environment(os.environ, device=device)
            self._servers = ForkedServers(open_fork_server(told, settings.logs / "vllm.log"))
        else:
            device = "cpu" if config.device == "cpu" else self.elsewhere.device
            self._servers = self.elsewhere.servers(device)
        flags = arguments(model, self._config.model, config, device)
        return self._servers.open(self.number, flags, settings.logs / "vllm-coach.log")

    async def _stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        if self._server is not None:
            await self._server.stop()


_shared: dict[tuple[str, ...], CoachServer] = {}
"""Servers of this process by what they are started with."""


def shared_server(
    config: CoachModelConfig, settings: Settings, elsewhere: Elsewhere | None = None
) -> CoachServer:
    """Take part in the server for a coach's model; `leave` gives it up.

    `elsewhere` has a place for each that is not here yet; None: it is on this machine.
    """
    key = (*config.server_key, str(settings.home))
    if key not in _shared:
        taken = {each.number for each in _shared.values() if each.elsewhere == elsewhere}
        number = next(number for number in count() if number not in taken)
        _shared[key] = CoachServer(config, settings, elsewhere=elsewhere, number=number)
    server = _shared[key]
    server.users += 1
    return server


async def leave(server: CoachServer) -> None:
    """Give a server up; the last one stops it."""
    server.users -= 1
    if server.users > 0:
        return
    for key in [key for key, shared in _shared.items() if shared is server]:
        del _shared[key]
    await server.close()
