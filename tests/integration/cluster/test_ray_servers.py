"""Servers in a Ray cluster: what is killed comes back elsewhere, and answers the same."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from mappa_core.app.cluster import open_on_ray
from mappa_core.app.config import TrainConfig
from mappa_core.cluster.bundles import Request
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.local_nodes import LocalNodes
from mappa_core.cluster.ray_places import connected, nodes, placed
from mappa_core.cluster.ray_servers import RayServers
from mappa_core.core.errors import ClusterError
from mappa_core.core.records.episodes import Completion, GenerationRequest, Sampling
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from tests.builders import make_policy, make_run
from tests.fakes import fork_stub

# Ray leaves sockets and the processes of its nodes to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCRIPT = Path(fork_stub.__file__)
POLICY = make_policy(make_run(), "speaker")


def config_at(address: str) -> ClusterConfig:
    return ClusterConfig(backend="ray", address=address, wait_seconds=60)


def config_of(cluster: LocalNodes) -> ClusterConfig:
    return config_at(cluster.address)


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


class Lost:
    """What happens to the server of the first bundle, and what is left of it afterwards."""

    def __init__(self, cluster: LocalNodes, pid: int) -> None:
        self.cluster, self.actor = cluster, psutil.Process(pid)

    def actor_killed(self) -> None:
        self.actor.kill()

    def node_killed(self) -> None:
        self.cluster.kill(self.cluster.node_of(0))
        self.clear = self.cluster.add

    def machine_silent(self) -> None:
        """It answers nothing and resets no connection, as without power."""
        raylet = self.actor.parent()
        assert raylet is not None
        assert raylet.name() == "raylet"
        silent = [raylet, *raylet.children(recursive=True)]
        name = self.cluster.node_of(0)
        for each in silent:
            each.suspend()

        def cleared() -> None:
            self.cluster.kill(name)
            self.cluster.add()

        self.clear = cleared

    def clear(self) -> None:
        """Leave the cluster with two nodes; in the main thread, as Ray starts them."""


@pytest.mark.parametrize("how", [Lost.actor_killed, Lost.node_killed, Lost.machine_silent])
@pytest.mark.timeout(600)
def test_a_lost_server_comes_back_and_what_it_was_asked_is_repeated(
    cluster: LocalNodes, tmp_path: Path, how: Callable[[Lost], None]
) -> None:
    lost: list[Lost] = []
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
                lost.append(Lost(cluster, await killed.pid.remote()))
                await asyncio.to_thread(how, lost[0])
                while opened[0].host in (killed, None):
                    await asyncio.sleep(0.1)
                hold.unlink()
                after = await asyncio.gather(*under_way)
            finally:
                await engine.close()
            return before, after

        before, after = asyncio.run(body())
        lost[0].clear()
    assert answers(before) == answers(after)
    assert len({each.token_ids for each in before}) == 40


def test_a_run_without_room_is_refused_with_what_there_is(cluster: LocalNodes) -> None:
    config = config_of(cluster).model_copy(update={"wait_seconds": 2})
    with connected(config):
        assert sum(node["CPU"] for node in nodes()) == 16
        expected = r"no room for 17 server\(s\) of 1 CPU .*2 x 8 CPU and 0 GPU"
        with pytest.raises(ClusterError, match=expected), placed(config, asked(17)):
            pass


HOLDER = """
import sys, time
from tests.integration.cluster.test_ray_servers import asked, config_at, connected, placed
with connected(config_at(sys.argv[1])), placed(config_at(sys.argv[1]), asked(16)) as places:
    print("placed", flush=True)
    time.sleep(600)
"""


def test_a_killed_runs_places_are_free_again(cluster: LocalNodes) -> None:
    words = [sys.executable, "-c", HOLDER, cluster.address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        # Ray tells of lost nodes there as well.
        assert "placed\n" in run.stdout
        config = config_of(cluster)
        with connected(config):
            at_once = config.model_copy(update={"wait_seconds": 1})
            with pytest.raises(ClusterError, match="no room"), placed(at_once, asked(16)):
                pass
            run.kill()
            with placed(config, asked(16)) as places:
                assert places.request == asked(16)


def test_a_runs_places_are_reserved_from_its_event_loop(cluster: LocalNodes) -> None:
    engine = {"device": "auto", "serving": "adapters", "replicas": 2}
    own = config_of(cluster).model_dump()
    config = TrainConfig.model_validate({"engine": engine, "cluster": own})

    async def body() -> tuple[str, Request]:
        async with AsyncExitStack() as stack:
            on_ray = await open_on_ray(config, 3, stack)
            assert on_ray is not None
            assert {cluster.node_of(bundle) for bundle in range(2)}
            return on_ray.device, on_ray.places.request

    assert asyncio.run(body()) == ("cpu", asked(2))


def test_no_cluster_is_said_so() -> None:
    config = ClusterConfig(backend="ray", address="127.0.0.9:1")
    with pytest.raises(ClusterError, match=r"no Ray cluster at 127\.0\.0\.9:1"), connected(config):
        pass
