"""Servers in a Ray cluster: what is killed comes back elsewhere, and answers the same."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from mappa_core.cluster.bundles import Request
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.ray_places import connected, nodes, placed
from mappa_core.cluster.ray_servers import RayServers
from mappa_core.core.errors import ClusterError
from mappa_core.core.records.episodes import Completion, GenerationRequest, Sampling
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from tests.builders import make_policy, make_run
from tests.fakes import fork_stub
from tests.ray_cluster import LocalCluster

# Ray leaves sockets and the processes of its nodes to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCRIPT = Path(fork_stub.__file__)
POLICY = make_policy(make_run(), "speaker")


def config_of(cluster: LocalCluster) -> ClusterConfig:
    return ClusterConfig(backend="ray", address=cluster.address, wait_seconds=30)


def request(seed: int) -> GenerationRequest:
    return GenerationRequest(
        policy=POLICY,
        prompt_token_ids=(1, seed),
        sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=8),
        seed=seed,
    )


def answers(completions: list[Completion]) -> list[object]:
    return [(each.token_ids, each.logprobs) for each in completions]


def asked(servers: int) -> Request:
    return Request(servers=servers, server_gpus=0, ranks=0, rank_gpus=0, cpus=1.0)


def test_a_killed_actor_comes_back_and_lost_requests_are_repeated(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with connected(config_of(cluster)), placed(config_of(cluster), asked(2)) as places:
        servers = RayServers(places, device="cpu", script=SCRIPT)
        opened = []

        class Watched:
            def open(self, *given: object) -> object:
                opened.append(servers.open(*given))  # pyright: ignore[reportArgumentType]
                return opened[-1]

            def close(self) -> None:
                servers.close()

        hold = tmp_path / "model" / fork_stub.HOLD
        hold.parent.mkdir()
        setup = EngineSetup(
            config=EngineConfig(device="cpu", serving="adapters", start_seconds=240),
            model=tmp_path / "model",
            agents=("speaker",),
            end_token_ids=(2,),
            work_directory=tmp_path / "work",
            log_directory=tmp_path / "logs",
            replicas=2,
        )

        async def body() -> tuple[list[Completion], list[Completion]]:
            engine = VllmEngine(setup, Watched())  # pyright: ignore[reportArgumentType]
            await engine.start()
            try:
                await engine.load(POLICY)
                before = await asyncio.gather(*(engine.generate(request(i)) for i in range(40)))
                hold.touch()
                under_way = [asyncio.ensure_future(engine.generate(request(i))) for i in range(40)]
                await asyncio.sleep(1)
                killed = opened[0].host
                os.kill(await killed.pid.remote(), signal.SIGKILL)
                while opened[0].host in (killed, None):
                    await asyncio.sleep(0.1)
                hold.unlink()
                after = await asyncio.gather(*under_way)
            finally:
                await engine.close()
            return before, after

        before, after = asyncio.run(body())
    assert answers(before) == answers(after)
    assert len({each.token_ids for each in before}) == 40


def test_a_run_without_room_is_refused_with_what_there_is(cluster: LocalCluster) -> None:
    config = config_of(cluster).model_copy(update={"wait_seconds": 2})
    with connected(config):
        assert sum(node["CPU"] for node in nodes()) == 16
        expected = r"no room for 17 server\(s\) of 1 CPU .*2 x 8 CPU and 0 GPU"
        with pytest.raises(ClusterError, match=expected), placed(config, asked(17)):
            pass


def test_no_cluster_is_said_so() -> None:
    config = ClusterConfig(backend="ray", address="127.0.0.9:1")
    with pytest.raises(ClusterError, match=r"no Ray cluster at 127\.0\.0\.9:1"), connected(config):
        pass
