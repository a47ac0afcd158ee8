"""Weights into a server's GPU memory with no file in between, by vLLM's own weight transfer.

    checkpoint ─▶ tensors on a GPU of this process ─▶ CUDA IPC or NCCL ─▶ the server's model
    init_weight_transfer_engine, start_weight_update, update_weights ..., finish_weight_update

Both ends are vLLM's (`vllm.distributed.weight_transfer`); ours is what is sent, and the socket that
the requests take. Within one GPU memory is shared (`ipc`); NCCL takes two GPUs, and then this
process uses the last one. Each load opens the connection anew: nothing is left to mend when a
server was restarted. Importing vLLM takes seconds, so this module is imported where it is used.
"""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import httpx
import torch
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from mappa_core.core.errors import EngineError
from mappa_core.core.text import counted
from mappa_core.models.weights import ServedWeights

_TRAINER_AND_SERVER = 2


class UnixSocketClient(HTTPVLLMWeightSyncClient):
    """vLLM's client, through a server's Unix socket."""

    def __init__(self, address: Path, seconds: float) -> None:
        super().__init__("http://vllm")
        # The server ends the connection of a request that failed, and the next one would meet that.
        alone = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(address), limits=alone),
            base_url=self.base_url,
            timeout=seconds,
        )

    def close(self) -> None:
        """Let go of the socket."""
        self._http.close()

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        self._http.post(f"/{path}", json=json).raise_for_status()


class CheckpointSource(WeightSource):
    """A checkpoint's tensors, one by one, in the server's type on a device of this process."""

    def __init__(self, weights: ServedWeights, device: torch.device) -> None:
        self._weights, self._device = weights, device

    def metadata(self) -> list[ParamMeta]:
        """Names and shapes, from the files' heads alone."""
        return [
            ParamMeta(name, self._weights.dtype, shape) for name, shape in self._weights.shapes()
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._weights.tensors():
            yield name, tensor.to(self._device, self._weights.dtype)


def send(
    weights: ServedWeights,
    address: Path,
    *,
    sync: Literal["ipc", "nccl"],
    seconds: float,
) -> None:
    """Replace the weights of the server at `address`.

    Raises:
        EngineError: There are too few GPUs; the server's weights stay.
        httpx.HTTPError: The server is gone or refuses; its weights are not whole any more.
        RuntimeError: CUDA or NCCL refuses, likewise.
    """
    device = sender_of(sync, torch.cuda.device_count())
    with closing(UnixSocketClient(address, seconds)) as client, torch.cuda.device(device):
        trainer = WeightTransferTrainerFactory.trainer_init(
            _terms(sync), client=client, source=CheckpointSource(weights, device)
        )
        trainer.send_weights()
        trainer.shutdown()
        client.shutdown_weight_transfer_engine()


def sender_of(sync: Literal["ipc", "nccl"], gpus: int) -> torch.device:
    """The GPU of this process that weights are sent from; servers are on the first.

    Raises:
        EngineError: There are too few.
    """
    needed = 1 if sync == "ipc" else 2
    if gpus < needed:
        raise EngineError(
            f"engine.weight_sync={sync} needs {counted(needed, 'GPU')}, and this machine has "
            f"{gpus}: set it to reload"
        )
    return torch.device("cuda", 0 if sync == "ipc" else gpus - 1)


def _terms(sync: Literal["ipc", "nccl"]) -> TrainerInitInfo:
    if sync == "ipc":
        # In parts of a buffer, so that the whole model is never there twice.
        return IPCTrainerInitInfo(rank=0, packed=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return NCCLTrainerInitInfo(
        master_address="127.0.0.1", master_port=port, world_size=_TRAINER_AND_SERVER, rank=0
    )
