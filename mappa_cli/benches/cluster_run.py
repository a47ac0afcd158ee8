"""A run in a Ray cluster of local nodes that loses one in a rollout and one in an update.

Its servers speak vLLM's HTTP over transformers, which samples the same in any company: what such a
run has else than one without a cluster is the cluster's.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import psycopg

from mappa_cli.benches.cluster import SERVERS
from mappa_core.app.cluster import OnRay, open_on_ray, open_storage
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.cluster.local_nodes import LocalNodes
from mappa_core.cluster.ray_ranks import RayRanks
from mappa_core.cluster.ray_servers import RayServer
from mappa_core.rollout.engines import start_engine
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.transformers import fork_vllm_stub
from mappa_core.store.connection import for_psql
from mappa_core.train.learners import open_learner

LOOK_SECONDS = 0.02
RECORDED = """
SELECT phase, iteration, problem_id, rollout_index, turn_index, agent, prompt_token_ids, token_ids,
    finish_reason, logprobs, (SELECT array_agg(score) FROM mappa.coach_score AS given
        WHERE given.action_id = action.id)
FROM mappa.action JOIN mappa.episode ON episode.id = action.episode_id
WHERE run_id = %s ORDER BY 1, 2, 3, 4, 5
"""
Play = Callable[[TrainConfig], Coroutine[object, object, object]]
"""The flow that trains."""


def recorded(url: str, run: UUID) -> Sequence[tuple[object, ...]]:
    """Read all actions of a run with their scores, in a fixed order, and no ids of its own."""
    with psycopg.connect(for_psql(url)) as connection:
        return connection.execute(RECORDED.encode(), [run]).fetchall()


@dataclass(slots=True)
class Started:
    """How often servers and ranks were."""

    servers: int = 0
    ranks: int = 0


class _Server(RayServer):
    """Counts its starts."""

    counted: Started

    async def start(self, seconds: float) -> None:
        self.counted.servers += 1
        await super().start(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Starts servers and ranks in a run's places, and counts them."""

    on_ray: OnRay
    started: Started

    def open(self, number: int, arguments: Sequence[str], log: Path) -> RayServer:
        script = Path(fork_vllm_stub.__file__)
        given = (self.on_ray.places, number, arguments, log)
        server = _Server(*given, device="cpu", script=script, storage=self.on_ray.storage)
        server.counted = self.started
        return server

    def close(self) -> None:
        """Nothing is left, as by `RayServers`."""

    def launch(self, slot: int, inbox: Path, log: Path, variables: Mapping[str, str]) -> RayRanks:
        self.started.ranks += 1
        return self.on_ray.launch(slot, inbox, log, variables)


@asynccontextmanager
async def on_cluster(
    port: Services, config: TrainConfig, address: str, folder: Path
) -> AsyncGenerator[tuple[Services, Started]]:
    """Give `port` an engine and a learner that are in the cluster, with their files in `folder`."""
    given = {"backend": "ray", "address": address, "placement": "spread"}
    apart = config.cluster.model_copy(update=given)
    changes = {"backend": "vllm", "serving": "adapters", "replicas": SERVERS, "start_seconds": 240}
    engine = config.engine.model_copy(update=changes)
    agents = tuple(agent.name for agent in port.team.agents)
    own = config.model_copy(update={"engine": engine, "cluster": apart})
    async with AsyncExitStack() as stack:
        storage = open_storage(apart, folder / "checkpoints")
        on_ray = await open_on_ray(own, len(agents), stack, storage=storage)
        assert on_ray is not None
        places = _Places(on_ray=on_ray, started=Started())
        setup = EngineSetup(
            config=engine,
            model=port.model,
            agents=agents,
            end_token_ids=port.tokenizer.end_token_ids,
            work_directory=folder / "work",
            log_directory=folder / "logs",
            lora_rank=config.learner.lora.rank,
            device="cpu",
            servers=places,
            replicas=SERVERS,
        )
        served = await start_engine(setup, stack)
        learned = (config.learner, port.model, folder / "checkpoints", stack)
        learner = open_learner(*learned, gpus=(), launcher=places.launch, storage=storage)
        there = replace(port, engine=served, learner=learner, storage=storage)
        yield there, places.started


@dataclass(slots=True, kw_only=True)
class Saboteur:
    """Kills a server's node with requests under way, then a rank's in the middle of an update."""

    port: Services
    config: TrainConfig
    cluster: LocalNodes
    folder: Path
    """As for `on_cluster`."""
    in_rollout: bool = False
    """Whether the rollout was under way when the first node was gone."""
    in_update: bool = False
    """The same of the update and the second node."""
    servers_on: int = 0
    """Nodes that had the servers before any was killed."""
    ranks_on: int = 0
    """Nodes that had the update's ranks before the second was."""

    async def strike(self) -> None:
        """Wait for the next run, and kill two nodes in it."""
        earlier = self._newest()
        await _until(lambda: self._newest() != earlier)
        run = self._newest()
        assert run is not None
        await self._in_rollout(run)
        await self._in_update(run)

    async def _in_rollout(self, run: UUID) -> None:
        hold = Path(self.port.model) / fork_vllm_stub.HOLD
        await _until(lambda: self._sampled(run) > 0)
        hold.touch()
        await asyncio.sleep(1)
        self.servers_on = await self._nodes_of(range(SERVERS))
        await asyncio.to_thread(self.cluster.kill, self.cluster.node_of(0))
        rollout = self.config.rollout
        # Each agent speaks once or more in each episode.
        least = rollout.problems * rollout.episodes_per_problem * len(self.port.team.agents)
        self.in_rollout = self._sampled(run) < least
        hold.unlink()

    async def _in_update(self, run: UUID) -> None:
        """Wait for the last agent's second update: the ranks are there, and compute."""
        *_, before, last = (agent.name for agent in self.port.team.agents)
        learned = self.port.store.updates.get_update
        await _until(lambda: learned(run, before, 2) is not None)
        checkpoints = self.folder / "checkpoints"
        await _until(lambda: any(checkpoints.glob(".job-*")))
        (job,) = checkpoints.glob(".job-*")
        await asyncio.sleep(0.3)
        ranks = range(SERVERS, SERVERS + self.config.learner.deepspeed.ranks)
        self.ranks_on = await self._nodes_of(ranks)
        await asyncio.to_thread(self.cluster.kill, self.cluster.node_of(ranks[-1]))
        self.in_update = job.exists() and learned(run, last, 2) is None

    async def _nodes_of(self, bundles: Sequence[int]) -> int:
        return len({await asyncio.to_thread(self.cluster.node_of, each) for each in bundles})

    def _newest(self) -> UUID | None:
        runs = self.port.store.runs.list_runs()
        return runs[0].id if runs else None

    def _sampled(self, run: UUID) -> int:
        figures = self.port.store.figures.get_iteration_figures(run, "train", 1)
        return sum(agent.actions for agent in figures.agents)


async def _until(true: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(true):
        await asyncio.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A run in a cluster, and what became of it."""

    run: UUID
    in_rollout: bool
    in_update: bool
    """Whether nodes were killed in the middle of these."""
    servers_on: int
    ranks_on: int
    """Nodes that had servers and ranks before one of theirs was killed."""
    servers_started: int
    ranks_started: int


async def play_losing_two(
    play: Play, port: Services, config: TrainConfig, cluster: LocalNodes, folder: Path
) -> Played:
    """Play a run whose servers and ranks are in the cluster, which loses two nodes meanwhile."""
    saboteur = Saboteur(port=port, config=config, cluster=cluster, folder=folder)
    async with on_cluster(port, config, cluster.address, folder) as (there, started):
        striking = asyncio.create_task(saboteur.strike())
        try:
            with use(there):
                await play(config)
        finally:
            striking.cancel()
        with suppress(asyncio.CancelledError):
            await striking
    return Played(
        run=port.store.runs.list_runs()[0].id,
        in_rollout=saboteur.in_rollout,
        in_update=saboteur.in_update,
        servers_on=saboteur.servers_on,
        ranks_on=saboteur.ranks_on,
        servers_started=started.servers,
        ranks_started=started.ranks,
    )
