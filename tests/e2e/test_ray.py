"""A run in a Ray cluster that loses a node in a rollout and one in an update ends as one without.

Three agents, their servers on two nodes, the learner's ranks on others. Servers speak vLLM's HTTP
over transformers, which samples the same in any company: what differs is the cluster's.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("ray", reason="Ray is not installed here")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")

from flows.train import train
from mappa_cli.benches.cluster import checkpoints
from mappa_cli.benches.cluster_run import SERVERS, Played, play_losing_two, recorded
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.cluster.local_nodes import local_nodes
from mappa_core.core.records.runs import RunStatus
from mappa_core.rollout.teams.base import AgentSpec
from mappa_core.store.store import Store
from mappa_core.train.learners import open_learner
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import Monologue

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
LOGPROBS = -2
"""Their place in a recorded row."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Where the runs of a test are recorded, and how they are configured."""

    url: str
    store: Store
    folder: Path
    config: TrainConfig
    make_services: MakeServices

    def config_of(self, ranks: int) -> TrainConfig:
        deepspeed = {"ranks": ranks, "stage": 2, "timeout_seconds": 600}
        learner = {**self.config.learner.model_dump(), "backend": "deepspeed"}
        return TrainConfig.model_validate(
            {**self.config.model_dump(), "learner": {**learner, "deepspeed": deepspeed}}
        )

    def services(self, config: TrainConfig) -> Services:
        services = self.make_services(config)
        return replace(services, team=Monologue(agents=AGENTS))

    async def alone(self, ranks: int) -> UUID:
        config = self.config_of(ranks)
        async with AsyncExitStack() as stack:
            services = self.services(config)
            given = (config.learner, services.model, self.folder / "alone", stack)
            await services.engine.start()
            with use(replace(services, learner=open_learner(*given, gpus=()))):
                await train(config)
        return self.store.runs.list_runs()[0].id

    async def there(self, ranks: int, storage: str = "") -> Played:
        cluster_config = self.config.cluster.model_copy(update={"storage": storage})
        config = self.config_of(ranks).model_copy(update={"cluster": cluster_config})
        # A node for each bundle, or a rank's may be the one that is lost with a server's.
        with local_nodes(SERVERS + ranks) as cluster:
            place = self.folder / "ray"
            return await play_losing_two(train, self.services(config), config, cluster, place)

    def recorded(self, run: UUID) -> Sequence[tuple[object, ...]]:
        return recorded(self.url, run)


@pytest.fixture
def world(
    store: Store,
    database_url: str,
    tmp_path: Path,
    toy_config: TrainConfig,
    make_services: MakeServices,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    # As many threads as the toy team's learner leaves to this process: sums are rounded in parts.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rollout = {"iterations": 2, "episodes_per_problem": 4, "max_tokens": 4}
    update = {"rollout": toy_config.rollout.model_copy(update=rollout)}
    return World(
        url=database_url,
        store=store,
        folder=tmp_path,
        config=toy_config.model_copy(update=update),
        make_services=make_services,
    )


def assert_lost_two(world: World, played: Played, ranks: int) -> None:
    assert (played.servers_on, played.ranks_on) == (SERVERS, ranks), "each has a node of its own"
    assert played.in_rollout
    assert played.in_update
    # Later ones are of the second node, which may have had a server, too.
    assert played.servers_started > SERVERS
    assert played.ranks_started == 2
    assert world.store.runs.get_run(str(played.run)).status is RunStatus.COMPLETED


def test_a_run_that_loses_two_nodes_ends_with_the_checkpoints_of_one_without_a_cluster(
    world: World,
) -> None:
    alone = asyncio.run(world.alone(1))
    played = asyncio.run(world.there(1))
    assert_lost_two(world, played, ranks=1)
    assert world.recorded(played.run) == world.recorded(alone)
    hashes = checkpoints(world.store, played.run)
    assert len(hashes) == 2 * len(AGENTS)
    assert hashes == checkpoints(world.store, alone)


def test_with_ranks_on_two_nodes_they_are_the_same_to_rounding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes and run see no folder in common here, but a storage of checkpoints."""
    monkeypatch.setenv("MAPPA_HOME", str(world.folder / "nodes"))
    alone = asyncio.run(world.alone(1))
    played = asyncio.run(world.there(2, f"file://{world.folder}/storage"))
    assert_lost_two(world, played, ranks=2)
    # Where servers and ranks had their weights from.
    assert any((world.folder / "nodes" / "fetched" / "served").rglob("manifest.json"))
    assert any((world.folder / "nodes" / "fetched" / "whole").rglob("manifest.json"))
    for mine, other in zip(world.recorded(played.run), world.recorded(alone), strict=True):
        rows = [(*row[:LOGPROBS], *row[LOGPROBS + 1 :]) for row in (mine, other)]
        assert rows[0] == rows[1]
        assert mine[LOGPROBS] == pytest.approx(other[LOGPROBS], abs=1e-3)
    pairs = [world.store.policies.list_checkpoints(run) for run in (played.run, alone)]
    for (mine, _), (other, _) in zip(*pairs, strict=True):
        assert (mine.agent, mine.step) == (other.agent, other.step)
        found, expected = tensors(mine.adapter_uri), tensors(other.adapter_uri)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            # Adam divides by the gradient's size: of one that is rounding a step is what it may be.
            # A tenth of it is allowed, and the moments say that the gradient is the same.
            moment = name.startswith("exp_avg.")
            close = {"atol": 1e-6, "rtol": 1e-3} if moment else {"atol": 1e-3, "rtol": 1e-3}
            torch.testing.assert_close(found[name], tensor, **close)


def tensors(directory: str | None) -> dict[str, torch.Tensor]:
    assert directory is not None
    files = Path(directory).glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}
