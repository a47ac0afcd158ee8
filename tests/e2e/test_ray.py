"""A run in a Ray cluster that loses a node in a rollout and one in an update ends as one without.

Three agents, their servers on two nodes, the learner's rank on a third. Servers speak vLLM's
HTTP over transformers, which samples the same in any company: what differs is the cluster's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

pytest.importorskip("ray", reason="Ray is not installed here")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")

from flows.train import train
from mappa_core.app.cluster import OnRay
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.cluster.bundles import Request
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.local_nodes import LocalNodes, local_nodes
from mappa_core.cluster.ray_places import connected, placed
from mappa_core.cluster.ray_servers import RayServers
from mappa_core.core.records.runs import RunStatus
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from mappa_core.rollout.teams.base import AgentSpec
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner
from tests.e2e.conftest import MakeServices
from tests.e2e.test_killed import weights
from tests.e2e.toy import Monologue
from tests.fakes import fork_tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # Ray leaves sockets and the processes of its nodes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
AGENTS = tuple(
    AgentSpec(name=name, title=name, max_turns=1, sees=()) for name in ("first", "second", "third")
)
SERVERS = 2
PLAYED = 2 * 4 * 3
"""Actions of an iteration."""
RECORDED = """
SELECT phase, iteration, problem_id, rollout_index, turn_index, agent, prompt_token_ids, token_ids,
    logprobs, finish_reason, (SELECT array_agg(score) FROM mappa.coach_score AS given
        WHERE given.action_id = action.id)
FROM mappa.action JOIN mappa.episode ON episode.id = action.episode_id
WHERE run_id = %s ORDER BY 1, 2, 3, 4, 5
"""
SAMPLED = """
SELECT count(*) FROM mappa.action JOIN mappa.episode ON episode.id = action.episode_id
WHERE phase = 'train' AND iteration = 1 AND run_id = %s
"""
LEARNED = "SELECT count(*) FROM mappa.update WHERE run_id = %s"


@dataclass(frozen=True, kw_only=True)
class World:
    """Where the runs of a test are recorded, and how they are configured."""

    url: str
    store: Store
    model: Path
    folder: Path
    config: TrainConfig
    make_services: MakeServices

    def services(self, ranks: int, learner: DeepspeedLearner) -> Services:
        services = self.make_services(self.asked(ranks))
        return replace(services, team=Monologue(agents=AGENTS), learner=learner)

    def asked(self, ranks: int) -> TrainConfig:
        deepspeed = {"ranks": ranks, "stage": 2, "timeout_seconds": 600}
        learner = {**self.config.learner.model_dump(), "backend": "deepspeed"}
        return TrainConfig.model_validate(
            {**self.config.model_dump(), "learner": {**learner, "deepspeed": deepspeed}}
        )

    def learner(self, ranks: int, name: str, on_ray: OnRay | None = None) -> DeepspeedLearner:
        launcher = on_ray and on_ray.launch
        given = (self.model, self.folder / name, self.asked(ranks).learner)
        return DeepspeedLearner(*given, threads=1, launcher=launcher)

    def count(self, query: str, run: UUID) -> int:
        with psycopg.connect(for_psql(self.url)) as connection:
            row = connection.execute(query.encode(), [run]).fetchone()
        assert row is not None
        return int(row[0])

    def recorded(self, run: UUID) -> list[object]:
        with psycopg.connect(for_psql(self.url)) as connection:
            return list(connection.execute(RECORDED.encode(), [run]).fetchall())


@pytest.fixture
def world(
    store: Store,
    database_url: str,
    tiny_model: Path,
    tmp_path: Path,
    toy_config: TrainConfig,
    make_services: MakeServices,
) -> World:
    rollout = {"iterations": 2, "episodes_per_problem": 4, "max_tokens": 4}
    update = {"rollout": toy_config.rollout.model_copy(update=rollout)}
    return World(
        url=database_url,
        store=store,
        model=tiny_model,
        folder=tmp_path,
        config=toy_config.model_copy(update=update),
        make_services=make_services,
    )


def play_without(world: World, ranks: int) -> UUID:
    learner = world.learner(ranks, f"alone-{ranks}")
    with closing(learner):
        asyncio.run(played(world, ranks, world.services(ranks, learner)))
    return newest(world)


def play_on_ray(world: World, ranks: int, cluster: LocalNodes) -> UUID:
    own = ClusterConfig(backend="ray", address=cluster.address, placement="spread")
    asked = Request(servers=SERVERS, server_gpus=0, ranks=ranks, rank_gpus=0, cpus=1.0)
    with connected(own), placed(own, asked) as places:
        on_ray = OnRay(places=places, device="cpu", ranks=ranks)
        setup = EngineSetup(
            config=EngineConfig(device="cpu", serving="adapters", start_seconds=240),
            model=world.model,
            agents=tuple(agent.name for agent in AGENTS),
            end_token_ids=ChatTokenizer(world.model).end_token_ids,
            work_directory=world.folder / "work",
            log_directory=world.folder / f"logs-{ranks}",
            lora_rank=world.config.learner.lora.rank,
            replicas=SERVERS,
        )
        servers = RayServers(places, device="cpu", script=Path(fork_tiny.__file__))
        learner = world.learner(ranks, f"ray-{ranks}", on_ray)
        services = world.services(ranks, learner)
        apart = {cluster.node_of(bundle) for bundle in range(SERVERS)}
        assert len(apart) == SERVERS
        if ranks > 1:
            assert cluster.node_of(SERVERS) != cluster.node_of(SERVERS + 1)
        on_servers = replace(services, engine=VllmEngine(setup, servers))
        with closing(learner):
            asyncio.run(played(world, ranks, on_servers, lambda: sabotaged(world, ranks, cluster)))
    return newest(world)


async def played(
    world: World,
    ranks: int,
    services: Services,
    sabotage: Callable[[], Awaitable[None]] | None = None,
) -> None:
    await services.engine.start()
    try:
        with use(services):
            if sabotage is None:
                await train(world.asked(ranks))
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(train(world.asked(ranks)))
                    group.create_task(sabotage())  # pyright: ignore[reportArgumentType]
    finally:
        await services.engine.close()


async def sabotaged(world: World, ranks: int, cluster: LocalNodes) -> None:
    """Kill a server's node with requests under way, then a rank's in the middle of an update."""
    earlier = newest(world)
    await until(lambda: newest(world) != earlier)
    run, hold = newest(world), world.model / fork_tiny.HOLD
    await until(lambda: world.count(SAMPLED, run) >= 1)
    hold.touch()
    await asyncio.sleep(1)
    assert world.count(SAMPLED, run) < PLAYED
    await asyncio.to_thread(cluster.kill, cluster.node_of(0))
    hold.unlink()
    # The third agent's second update: the ranks are there, and compute.
    await until(lambda: world.count(LEARNED, run) == 5)
    under_way = world.folder / f"ray-{ranks}"
    await until(lambda: any(under_way.glob(".job-*")))
    (job,) = under_way.glob(".job-*")
    await asyncio.sleep(0.3)
    await asyncio.to_thread(cluster.kill, cluster.node_of(SERVERS + ranks - 1))
    assert job.exists()
    assert world.count(LEARNED, run) == 5


async def until(true: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(true):
        await asyncio.sleep(0.02)


def newest(world: World) -> UUID:
    return world.store.runs.list_runs()[0].id


@pytest.mark.parametrize("ranks", [1])
def test_a_run_that_loses_two_nodes_ends_with_the_checkpoints_of_one_without_a_cluster(
    world: World, ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    alone = play_without(world, ranks)
    caplog.clear()
    with caplog.at_level(logging.INFO), local_nodes(3) as cluster:
        run = play_on_ray(world, ranks, cluster)
    # In the rollout; later ones are of the second node, which may have had a server, too.
    assert "at /v1/completions" in caplog.text.split("restarting a vLLM server that died")[1]
    assert caplog.text.count(f"started {ranks} ranks") == 2
    assert world.store.runs.get_run(str(run)).status is RunStatus.COMPLETED
    assert world.recorded(run) == world.recorded(alone)
    assert world.count(LEARNED, run) == 2 * len(AGENTS)
    assert weights(world.store, run) == weights(world.store, alone)
