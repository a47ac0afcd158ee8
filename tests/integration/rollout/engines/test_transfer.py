"""vLLM's own weight transfer: its server's answers on a CPU, and the weights themselves on GPUs."""

import asyncio
from pathlib import Path

import httpx
import pytest
import torch

from mappa_core.core.errors import EngineError
from mappa_core.models.serving.server import Server
from mappa_core.models.weights import ServedWeights, load_base
from mappa_core.rollout.engines.vllm import command
from mappa_core.rollout.engines.vllm.fork_server import open_fork_server
from tests.integration.rollout.engines.test_vllm import (
    CONFIG,
    adapted,
    difference,
    make_engine,
    policy,
    request,
)
from tests.tiny_model import save_adapter


@pytest.mark.slow  # starts a server and imports vLLM beside it
def test_a_server_answers_the_sequence_as_far_as_a_cpu_can(
    real_model: Path, tmp_path: Path
) -> None:
    from mappa_core.rollout.engines.vllm.transfer import (
        CheckpointSource,
        UnixSocketClient,
        sender_of,
    )

    def sequence(server: Server) -> None:
        client = UnixSocketClient(server.address, 60)
        with pytest.raises(httpx.HTTPStatusError):
            client.finish_weight_update()  # nothing was started
        client.init_weight_transfer_engine({"packed": True})
        client.start_weight_update()
        names = [meta.name for meta in source.metadata()]
        shapes = [list(meta.shape) for meta in source.metadata()]
        update = {"names": names, "shapes": shapes, "dtype_names": ["float32"] * len(names)}
        handles = {"ipc_handles": {"no GPU": ()}, "tensor_sizes": [0] * len(names)}
        with pytest.raises(httpx.HTTPStatusError):
            client.update_weights(update | handles)  # the server has no CUDA to open them with
        client.shutdown_weight_transfer_engine()

    async def scenario() -> None:
        sending = CONFIG.model_copy(update={"weight_sync": "ipc"})
        flags = command.arguments(real_model, CONFIG, device="cpu", servers=1)
        fork_server = open_fork_server(sending, tmp_path / "logs")
        server = Server(
            fork_server, flags + command.transfer_arguments("ipc"), tmp_path / "vllm.log"
        )
        try:
            await server.start(CONFIG.start_seconds)
            await asyncio.to_thread(sequence, server)
            assert await server.healthy()
        finally:
            await server.stop()
            fork_server.close()

    source = CheckpointSource(ServedWeights(real_model, None, torch.float32), torch.device("cpu"))
    sent = [(name, tuple(tensor.shape)) for name, tensor in source]
    assert sent == [(meta.name, meta.shape) for meta in source.metadata()]
    asyncio.run(scenario())
    log = (tmp_path / "vllm.log").read_text()
    assert "finish_weight_update called without a matching start_weight_update" in log
    with pytest.raises(EngineError, match="needs 2 GPUs, and this machine has 1: set"):
        sender_of("nccl", 1)
    assert [sender_of("ipc", 1).index, sender_of("nccl", 4).index] == [0, 3]


@pytest.mark.gpu
@pytest.mark.parametrize("sync", ["ipc", "nccl"])
def test_weights_that_were_sent_are_those_of_the_checkpoint(
    real_model: Path, tmp_path: Path, sync: str
) -> None:
    if sync == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL takes two GPUs")
    adapter = save_adapter(real_model, tmp_path / "adapter", seed=1, size=0.01)
    exact = {"device": "cuda", "dtype": "float32", "serving": "merged", "weight_sync": sync}

    async def scenario() -> tuple[float, float]:
        engine = make_engine(real_model, tmp_path, CONFIG.model_copy(update=exact))
        await engine.start()
        try:
            trained, base = policy("solver", 1, adapter), policy("solver", 0, None)
            await engine.load(trained)
            after = await engine.generate(request(trained))
            await engine.load(base)
            before = await engine.generate(request(base))
        finally:
            await engine.close()
        plain = load_base(real_model, torch.float32, "cpu")
        return difference(adapted(real_model, adapter), after), difference(plain, before)

    assert max(asyncio.run(scenario())) < 1e-3
