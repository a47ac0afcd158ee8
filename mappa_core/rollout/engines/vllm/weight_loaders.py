"""Ways to give each agent its own weights from vLLM.

    CheckpointLoader    one server per agent, which reads a checkpoint itself: its LoRA merged
                        into full weights that replace the old ones
    TransferLoader      the same weights, sent through a GPU's memory (`transfer`)
    AdapterLoader       one server for all agents, each agent's LoRA beside the shared base

Through an adapter a CPU reads a prompt ten times slower than through merged weights; a GPU does
not mind, and has memory for one base model rather than three.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx
import torch

from mappa_core.core.errors import ClusterError, EngineError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.models.serving.client import REPLY_SECONDS, ServerDied
from mappa_core.models.serving.server import OwnServer, Server
from mappa_core.models.weights import ServedWeights
from mappa_core.rollout.engines.vllm.command import BASE


class WeightsUnchanged(EngineError):
    """New weights that cannot be had; the server has what it had."""


_RESET_ATTEMPTS = 20
_RESET_PAUSE_SECONDS = 0.1


class WeightLoader(ABC):
    """Puts a policy into a server."""

    @abstractmethod
    async def load(
        self, server: OwnServer, policy: PolicyVersion, old: PolicyVersion | None
    ) -> None:
        """Put `policy` in the place of `old`, the agent's policy until now.

        Raises:
            WeightsUnchanged: It cannot be had; `old` is served as before.
            EngineError: The server refused, and what it has now is not known.
            ServerDied: The server is gone.
        """

    def model_name(self, policy: PolicyVersion) -> str:  # noqa: ARG002
        """What requests for a loaded policy name as their model."""
        return BASE


class CheckpointLoader(WeightLoader):
    """Has a server replace its full weights by those of a checkpoint, which it reads."""

    async def load(
        self, server: OwnServer, policy: PolicyVersion, old: PolicyVersion | None
    ) -> None:
        """Name the checkpoint; the server merges an adapter."""
        checkpoint = ""
        if policy.adapter_uri is not None:
            with _readable(policy):
                checkpoint = str(await server.readable(Path(policy.adapter_uri)))
        elif old is None or old.adapter_uri is None:
            return
        order = {"method": "serve_checkpoint", "kwargs": {"checkpoint": checkpoint}}
        reply = await server.post("/collective_rpc", order)
        refusals = reply.json()["results"]
        if any(refusals):
            # Where one worker could read it, the server has the old weights no more.
            error = WeightsUnchanged if all(refusals) else EngineError
            raise error(_unreadable(policy, next(filter(None, refusals))))
        await _drop_cache(server)


class TransferLoader(WeightLoader):
    """Replaces the same weights, sent through GPU memory instead of read from a file."""

    def __init__(self, model: Path | str, sync: Literal["ipc", "nccl"], dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._sync: Literal["ipc", "nccl"] = sync
        self._lock = asyncio.Lock()

    async def load(
        self, server: OwnServer, policy: PolicyVersion, old: PolicyVersion | None
    ) -> None:
        """Send the weights; one server at a time."""
        if policy.adapter_uri is None and (old is None or old.adapter_uri is None):
            return
        checkpoint = None if policy.adapter_uri is None else Path(policy.adapter_uri)
        with _readable(policy):
            weights = await asyncio.to_thread(ServedWeights, self._model, checkpoint, self._dtype)
        from mappa_core.rollout.engines.vllm.transfer import send

        if not isinstance(server, Server):
            raise WeightsUnchanged("weights are sent to servers of this machine alone")
        try:
            async with self._lock:
                await asyncio.to_thread(
                    send, weights, server.address, sync=self._sync, seconds=REPLY_SECONDS
                )
        except httpx.TransportError as error:
            raise ServerDied(f"{type(error).__name__} while weights were sent") from error
        except (httpx.HTTPStatusError, OSError, RuntimeError, ValueError) as error:
            if not await server.healthy():
                raise ServerDied(f"{error} while weights were sent") from error
            raise EngineError(
                f"cannot send {policy.agent}'s weights by {self._sync} ({error}): read "
                f"{server.log}, or set engine.weight_sync=reload"
            ) from error
        await _drop_cache(server)


class AdapterLoader(WeightLoader):
    """Puts LoRA adapters beside the base weights, each version under a name of its own."""

    async def load(
        self, server: OwnServer, policy: PolicyVersion, old: PolicyVersion | None
    ) -> None:
        """Add the new adapter, then drop the old one."""
        if policy.adapter_uri is not None:
            name = self.model_name(policy)
            with _readable(policy):
                path = await server.readable(Path(policy.adapter_uri))
            order = {"lora_name": name, "lora_path": str(path)}
            try:
                await server.post("/v1/load_lora_adapter", order)
            except EngineError as error:
                raise WeightsUnchanged(str(error)) from error
        if old is not None and old.adapter_uri is not None:
            await server.post("/v1/unload_lora_adapter", {"lora_name": self.model_name(old)})

    def model_name(self, policy: PolicyVersion) -> str:
        """The policy's id; step 0 is the base itself."""
        return BASE if policy.adapter_uri is None else str(policy.id)


@contextmanager
def _readable(policy: PolicyVersion) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError, ClusterError) as error:
        raise WeightsUnchanged(_unreadable(policy, str(error))) from error


def _unreadable(policy: PolicyVersion, why: str) -> str:
    return f"cannot serve {policy.agent}'s weights {policy.adapter_uri}: {why}"


async def _drop_cache(server: OwnServer) -> None:
    """Drop cached keys and values, which are of the old weights."""
    # vLLM refuses while a block is in use, which a request that was given up a moment ago may
    # still hold.
    for _ in range(_RESET_ATTEMPTS):
        if (await server.post("/reset_prefix_cache", {})).json()["success"]:
            return
        await asyncio.sleep(_RESET_PAUSE_SECONDS)
    raise EngineError(f"vLLM keeps cached blocks of the old weights: read {server.log}")
