"""Real vLLM as an actor's server, on the CPU: weights come from a storage, and it comes back."""

import asyncio
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.cluster.bundles import Request
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.local_nodes import local_nodes
from mappa_core.cluster.ray_places import connected, placed
from mappa_core.cluster.ray_servers import RayServers
from mappa_core.cluster.storage import Storage
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion, Sampling
from mappa_core.models.layout import MANIFEST
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from tests.builders import make_policy, make_run
from tests.tiny_model import save_adapter

pytest.importorskip("vllm", reason="vLLM is not installed here")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CONFIG = EngineConfig(
    device="cpu", dtype="float32", max_model_length=128, kv_cache_gib=0.1, start_seconds=900
)
SPEAKER = "speaker"


def request(policy: PolicyVersion, seed: int) -> GenerationRequest:
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=8)
    return GenerationRequest(
        policy=policy, prompt_token_ids=(1, 7, 9), sampling=sampling, seed=seed
    )


@pytest.mark.parametrize("serving", ["merged", "adapters"])
def test_vllm_serves_from_a_node_and_from_another_one_when_that_dies(
    real_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving: str
) -> None:
    # Of the nodes, which are started after it.
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "node"))
    base = make_policy(make_run(), SPEAKER)
    directory = tmp_path / "checkpoints" / str(base.run_id) / SPEAKER / "1"
    save_adapter(real_model, directory, size=0.01)
    (directory / MANIFEST).write_text("{}")
    storage = Storage(url=f"file://{tmp_path}/storage", root=str(tmp_path / "checkpoints"))
    storage.upload(directory, directory)
    shutil.rmtree(directory)
    trained = replace(make_policy(make_run(), SPEAKER, 1), adapter_uri=str(directory))
    asked = Request(servers=1, server_gpus=0, ranks=0, rank_gpus=0, cpus=1.0)
    with ExitStack() as stack:
        cluster = stack.enter_context(local_nodes(2))
        own = ClusterConfig(backend="ray", address=cluster.address)
        stack.enter_context(connected(own))
        places = stack.enter_context(placed(own, asked))
        setup = EngineSetup(
            config=CONFIG.model_copy(update={"serving": serving}),
            model=real_model,
            agents=(SPEAKER,),
            end_token_ids=ChatTokenizer(real_model).end_token_ids,
            work_directory=tmp_path / "work",
            log_directory=tmp_path / "logs",
            lora_rank=8,
        )
        servers = RayServers(places, device="cpu", storage=storage)

        async def body() -> list[list[Completion]]:
            engine = VllmEngine(setup, servers)
            await engine.start()
            try:
                await engine.load(base)
                first = [await engine.generate(request(base, seed)) for seed in range(4)]
                await engine.load(trained)
                learnt = [await engine.generate(request(trained, seed)) for seed in range(4)]
                await asyncio.to_thread(cluster.kill, cluster.node_of(0))
                again = [await engine.generate(request(trained, seed)) for seed in range(4)]
            finally:
                await engine.close()
            return [first, learnt, again]

        first, learnt, again = asyncio.run(body())
    tokens = [[each.token_ids for each in some] for some in (first, learnt, again)]
    assert tokens[1] == tokens[2]
    assert [each.logprobs for each in learnt] == [each.logprobs for each in again]
    assert [each.logprobs for each in first] != [each.logprobs for each in learnt]
