"""The engine on vLLM: which servers there are, and which of them serves whom."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.models.device import resolve_device, resolve_dtype
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.vllm import command
from mappa_core.rollout.engines.vllm.managed_server import Slot
from mappa_core.rollout.engines.vllm.server import ForkServer, Server
from mappa_core.rollout.engines.vllm.serving import Adapters, Merged, Serving, Transferred
from mappa_core.rollout.engines.vllm.waves import Turns


class VllmEngine:
    """Samples from vLLM servers that it starts, feeds with weights, and restarts.

    To be used from one event loop.
    """

    def __init__(
        self,
        *,
        model: Path | str,
        agents: Sequence[str],
        config: EngineConfig,
        end_token_ids: Sequence[int],
        work_directory: Path,
        fork_server: ForkServer,
        lora_rank: int = 64,
    ) -> None:
        """Describe the engine; nothing is started.

        Args:
            model: Directory of the base weights.
            agents: Names of all agents to be served.
            config: Device, serving and limits.
            end_token_ids: Tokens that end a turn.
            work_directory: Merged weights lie here while they are loaded.
            fork_server: Where the servers come from (`open_fork_server`); closed with the engine.
                What they print is one file each beside its log.
            lora_rank: Largest rank of an adapter (serving `adapters` only).
        """
        device = resolve_device(config.device)
        merged = config.serving == "merged" or (config.serving == "auto" and device == "cpu")
        dtype = resolve_dtype(config.dtype, device)
        serving = _serving(model, config, work_directory, dtype) if merged else Adapters()
        names = tuple(agents) if merged else ("adapters",)
        flags = command.arguments(model, config, device=device, servers=len(names))
        if not merged:
            flags += command.adapter_arguments(len(agents), lora_rank)

        self._fork_server = fork_server

        def slot(name: str) -> Slot:
            server = Server(fork_server, flags, fork_server.log.with_name(f"vllm-{name}.log"))
            return Slot(server, serving, end_token_ids=tuple(end_token_ids), config=config)

        # vLLM's sleep mode is for GPUs only.
        self._sleeps = config.colocate and device != "cpu"
        slots = tuple(map(slot, names))
        self._turns = Turns() if device == "cpu" and len(slots) > 1 else None
        self._slots = dict(zip(agents, slots if merged else slots * len(agents), strict=True))

    async def start(self) -> None:
        """Start all servers at once.

        Raises:
            EngineError: One does not start; all are stopped again.
        """
        results = await asyncio.gather(
            *(slot.start() for slot in set(self._slots.values())), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.close()
            raise failures[0]

    async def load(self, policy: PolicyVersion) -> None:
        """Serve `policy` for its agent from now on.

        Raises:
            EngineError: The weights cannot be loaded.
        """
        await self._slot(policy).load(policy)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action.

        Raises:
            EngineError: The server cannot be brought back, or serves another version.
        """
        slot = self._slot(request.policy)
        if self._turns is None:
            return await slot.generate(request)
        async with self._turns.taking(request.policy.agent):
            return await slot.generate(request)

    async def sleep(self) -> None:
        """Leave a GPU's memory to the learner; on a CPU nothing is given up.

        Raises:
            EngineError: A server died and cannot be brought back.
        """
        if self._sleeps:
            await asyncio.gather(*(slot.sleep() for slot in set(self._slots.values())))

    async def wake(self) -> None:
        """Take the memory again.

        Raises:
            EngineError: A server died and cannot be brought back.
        """
        if self._sleeps:
            await asyncio.gather(*(slot.wake() for slot in set(self._slots.values())))

    async def close(self) -> None:
        """Stop the servers; safe to call twice."""
        await asyncio.gather(*(slot.close() for slot in set(self._slots.values())))
        self._fork_server.close()

    def _slot(self, policy: PolicyVersion) -> Slot:
        slot = self._slots.get(policy.agent)
        if slot is None:
            raise EngineError(f"no agent {policy.agent} here: only {', '.join(self._slots)}")
        return slot


def _serving(
    model: Path | str, config: EngineConfig, directory: Path, dtype: torch.dtype
) -> Serving:
    """How whole weights reach the servers, which hold them as `dtype`."""
    if config.weight_sync == "reload":
        return Merged(model, directory, dtype)
    return Transferred(model, config.weight_sync, dtype)
