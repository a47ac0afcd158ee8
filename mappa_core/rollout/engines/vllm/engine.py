"""The engine on vLLM: which servers there are, and which of them serves which agent."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mappa_core.core.concurrency import all_ended
from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.models.device import resolve_device, resolve_dtype
from mappa_core.models.serving.fork_server import ForkServer
from mappa_core.models.serving.server import Server
from mappa_core.rollout.engines.base import EngineSetup, serves_whole_models
from mappa_core.rollout.engines.vllm import command
from mappa_core.rollout.engines.vllm.fork_server import open_fork_server
from mappa_core.rollout.engines.vllm.managed_server import ManagedServer
from mappa_core.rollout.engines.vllm.waves import WaveScheduler
from mappa_core.rollout.engines.vllm.weight_loaders import (
    AdapterLoader,
    FileLoader,
    TransferLoader,
    WeightLoader,
)


class VllmEngine:
    """An `Engine` on vLLM servers that it starts, feeds with weights, and restarts.

    To be used from one event loop.
    """

    def __init__(self, setup: EngineSetup, fork_server: ForkServer) -> None:
        config, agents = setup.config, setup.agents
        device = resolve_device(config.device)
        merged = serves_whole_models(config, device, whole_weights=setup.whole_weights)
        names = agents if merged else ("adapters",)
        flags = server_flags(setup, device)
        loader = _whole_model_loader(setup, device) if merged else AdapterLoader()

        def managed(name: str) -> ManagedServer:
            server = Server(fork_server, flags, fork_server.log.with_name(f"vllm-{name}.log"))
            return ManagedServer(server, loader, end_token_ids=setup.end_token_ids, config=config)

        self.setup = setup
        """What it was opened with."""
        self._fork_server = fork_server
        # vLLM's sleep mode is for GPUs only.
        self._sleeps = config.colocate and device != "cpu"
        self._servers = tuple(map(managed, names))
        self._share_a_gpu = device != "cpu"
        self._waves = WaveScheduler() if device == "cpu" and len(names) > 1 else None
        serving = self._servers if merged else self._servers * len(agents)
        self._server_of = dict(zip(agents, serving, strict=True))

    async def start(self) -> None:
        """Start all servers; where one does not start, all are stopped again."""
        try:
            await start_all(self._servers, one_by_one=self._share_a_gpu)
        except BaseException:
            await self.close()
            raise

    async def load(self, policy: PolicyVersion) -> None:
        """Put `policy` into the server of its agent."""
        await self._server_for(policy).load(policy)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action on the agent's server."""
        server = self._server_for(request.policy)
        if self._waves is None:
            return await server.generate(request)
        async with self._waves.admitted(request.policy.agent):
            return await server.generate(request)

    async def sleep(self) -> None:
        """Leave a GPU's memory to the learner; on a CPU nothing is given up."""
        if self._sleeps:
            await asyncio.gather(*(server.sleep() for server in self._servers))

    async def wake(self) -> None:
        """Take the memory again."""
        if self._sleeps:
            await asyncio.gather(*(server.wake() for server in self._servers))

    async def close(self) -> None:
        """Stop the servers; safe to call twice."""
        await asyncio.gather(*(server.close() for server in self._servers))
        self._fork_server.close()

    def _server_for(self, policy: PolicyVersion) -> ManagedServer:
        server = self._server_of.get(policy.agent)
        if server is None:
            raise EngineError(f"no agent {policy.agent} here: only {', '.join(self._server_of)}")
        return server


def server_flags(setup: EngineSetup, device: str) -> tuple[str, ...]:
    """List what each server of an engine on `device` is started with."""
    merged = serves_whole_models(setup.config, device, whole_weights=setup.whole_weights)
    flags = command.arguments(
        setup.model,
        setup.config,
        device=device,
        servers=len(setup.agents) if merged else 1,
        gpu_cache_bytes=setup.gpu_cache_bytes,
    )
    if merged:
        return flags
    return flags + command.adapter_arguments(len(setup.agents), setup.lora_rank)


class Startable(Protocol):
    """A server that is not up yet."""

    async def start(self) -> None:
        """Return when it answers."""
        ...


async def start_all(servers: Sequence[Startable], *, one_by_one: bool) -> None:
    """Start servers; the first error is raised when none is starting any more.

    On a GPU they come one after another: a server asks for its share of the memory that is free
    when it starts, and one whose cache is not given measures what its own weights and steps leave:
    it would take another's, which is loading, for its own.
    """
    if one_by_one:
        for server in servers:
            await server.start()
        return
    await all_ended((server.start() for server in servers), at_once=len(servers))


def _whole_model_loader(setup: EngineSetup, device: str) -> WeightLoader:
    """How whole weights reach the servers, which hold them in the type of the device."""
    dtype = resolve_dtype(setup.config.dtype, device)
    if setup.config.weight_sync == "reload":
        return FileLoader(setup.model, setup.work_directory, dtype)
    return TransferLoader(setup.model, setup.config.weight_sync, dtype)


def open_engine(setup: EngineSetup) -> VllmEngine:
    """The engine, not started yet."""
    return VllmEngine(setup, open_fork_server(setup.config, setup.log_directory))
