"""The engine on vLLM: which servers there are, and which of them serves which agent."""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Protocol

from mappa_core.core.concurrency import all_ended
from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.models.device import resolve_device, resolve_dtype
from mappa_core.models.serving.server import Servers
from mappa_core.rollout.engines.base import EngineSetup, serves_whole_models
from mappa_core.rollout.engines.vllm import command
from mappa_core.rollout.engines.vllm.endpoints_engine import EndpointsEngine
from mappa_core.rollout.engines.vllm.fork_server import open_servers
from mappa_core.rollout.engines.vllm.managed_server import ManagedServer
from mappa_core.rollout.engines.vllm.replicas import Balance
from mappa_core.rollout.engines.vllm.waves import WaveScheduler
from mappa_core.rollout.engines.vllm.weight_loaders import (
    AdapterLoader,
    CheckpointLoader,
    TransferLoader,
    WeightLoader,
)


class VllmEngine:
    """An `Engine` on vLLM servers that it starts, feeds with weights, and restarts.

    To be used from one event loop.
    """

    def __init__(self, setup: EngineSetup, servers: Servers) -> None:
        config, agents = setup.config, setup.agents
        device = setup.device or resolve_device(config.device)
        merged = serves_whole_models(config, device, whole_weights=setup.whole_weights)
        names = command.kinds(setup, device)
        loader = _whole_model_loader(setup, device) if merged else AdapterLoader()
        gpus = setup.devices or ((),) * (len(names) * setup.replicas)

        def managed(opening: command.Opening) -> ManagedServer:
            server = servers.open(*opening)
            return ManagedServer(server, loader, end_token_ids=setup.end_token_ids, config=config)

        self.setup = setup
        """What it was opened with."""
        self._source = servers
        # vLLM's sleep mode is for GPUs only.
        self._sleeps = setup.sleeps and device != "cpu"
        self._servers = tuple(map(managed, command.openings(setup, device)))
        self._turns = turns(gpus, on_gpu=device != "cpu")
        self._waves = WaveScheduler() if command.shares_cores(names, device) else None
        # Replicas of one agent's server, or of the one server that all agents share.
        of_kind = [self._servers[kind :: len(names)] for kind in range(len(names))]
        balances = [Balance(setup.replicas) for _ in names]
        self._serving = {
            agent: (of_kind[kind], balances[kind])
            for agent, kind in zip(agents, range(len(names)) if merged else repeat(0), strict=False)
        }

    @property
    def loads_ahead(self) -> bool:
        """Servers that are awake read new weights beside the learner."""
        return not self._sleeps

    async def start(self) -> None:
        """Start all servers; where one does not start, all are stopped again."""
        try:
            await start_all([[self._servers[i] for i in turn] for turn in self._turns])
        except BaseException:
            await self.close()
            raise

    async def load(self, policy: PolicyVersion) -> None:
        """Put `policy` into all servers of its agent; returns when the last one has it."""
        servers, _ = self._serving_of(policy)
        await all_ended((partial(server.load, policy) for server in servers), at_once=len(servers))

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action on a server of the agent, the one that has its problem."""
        servers, balance = self._serving_of(request.policy)
        if self._waves is None:
            with balance.chosen(request.problem_id) as replica:
                return await servers[replica].generate(request)
        async with self._waves.admitted(request.policy.agent):
            with balance.chosen(request.problem_id) as replica:
                return await servers[replica].generate(request)

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
        self._source.close()

    def _serving_of(self, policy: PolicyVersion) -> tuple[Sequence[ManagedServer], Balance]:
        serving = self._serving.get(policy.agent)
        if serving is None:
            raise EngineError(f"no agent {policy.agent} here: only {', '.join(self._serving)}")
        return serving


class Startable(Protocol):
    """A server that is not up yet."""

    async def start(self) -> None:
        """Return when it answers."""
        ...


def turns(gpus: Sequence[tuple[str, ...]], *, on_gpu: bool) -> list[list[int]]:
    """Say which servers start one after another, by their numbers: those that share GPUs.

    A server asks for its share of the memory that is free when it starts, and one whose cache is
    not given measures what its own weights and steps leave: it would take another's, which is
    loading, for its own. On a CPU each starts by itself.
    """
    if not on_gpu:
        return [[number] for number in range(len(gpus))]
    sharing: dict[tuple[str, ...], list[int]] = {}
    for number, own in enumerate(gpus):
        sharing.setdefault(own, []).append(number)
    return list(sharing.values())


async def start_all(turns: Sequence[Sequence[Startable]]) -> None:
    """Start servers, each turn's one after another; the first error is raised when none starts."""

    async def start(turn: Sequence[Startable]) -> None:
        for server in turn:
            await server.start()

    await all_ended((partial(start, turn) for turn in turns), at_once=len(turns))


def _whole_model_loader(setup: EngineSetup, device: str) -> WeightLoader:
    """How whole weights reach the servers, which hold them in the type of the device."""
    if setup.config.weight_sync == "reload":
        return CheckpointLoader()
    dtype = resolve_dtype(setup.config.dtype, device)
    return TransferLoader(setup.model, setup.config.weight_sync, dtype)


def open_engine(setup: EngineSetup) -> VllmEngine | EndpointsEngine:
    """The engine, not started yet: on its own servers, or on those of `engine.urls`."""
    if setup.config.urls:
        return EndpointsEngine(setup)
    return VllmEngine(setup, open_servers(setup) if setup.servers is None else setup.servers)
