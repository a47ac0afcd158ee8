"""A learner whose ranks are on two nodes of a Ray cluster: the numbers of ranks on this machine."""

import os
import signal
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest
import ray

from mappa_core.app.cluster import OnRay
from mappa_core.cluster.bundles import Request
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.local_nodes import LocalNodes
from mappa_core.cluster.ray_places import connected, placed
from mappa_core.cluster.ray_ranks import RayRanks
from mappa_core.core.errors import LearnerError
from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.integration.train.deepspeed.updates import (
    ALGORITHM,
    assert_same,
    batch,
    spread,
    updates,
    updates_beside,
)
from tests.integration.train.learner.samples import BASE
from tests.tiny_model import save_tiny_model

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Victim:
    """Launches ranks, and can kill the actor of the last one."""

    def __init__(self, on_ray: OnRay) -> None:
        self._on_ray = on_ray
        self.started: list[RayRanks] = []

    def __call__(self, slot: int, inbox: Path, log: Path, variables: Mapping[str, str]) -> RayRanks:
        self.started.append(self._on_ray.launch(slot, inbox, log, variables))
        return self.started[-1]

    def kill(self) -> None:
        host = self.started[-1].hosts[-1]
        os.kill(ray.get(host.pid.remote()), signal.SIGKILL)  # pyright: ignore


def test_two_ranks_on_two_nodes_learn_the_same_and_one_may_be_killed(
    cluster: LocalNodes, tmp_path: Path
) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    config = spread(3, 2, weights="full")
    apart = ClusterConfig(backend="ray", address=cluster.address, placement="strict_spread")
    asked = Request(servers=0, server_gpus=0, ranks=2, rank_gpus=0, cpus=1.0)
    with connected(apart), placed(apart, asked) as places:
        victim = Victim(OnRay(places=places, device="cpu", ranks=2))
        learner = DeepspeedLearner(model, tmp_path / "ray", config, threads=1, launcher=victim)
        with closing(learner):
            ours = updates(learner, 2)
            assert len(victim.started) == 1
            addresses = ray.get([host.rendezvous.remote() for host in victim.started[0].hosts])  # pyright: ignore
            assert len({address for address, _ in addresses}) == 2
            killing = Timer(0.3, victim.kill)
            killing.start()
            with pytest.raises(LearnerError, match="ended without an answer"):
                learner.update(BASE, batch(), ALGORITHM, total_steps=4, seed=3)
            killing.join()
            again = learner.update(BASE, batch(), ALGORITHM, total_steps=4, seed=3)
    torch_learner = TorchLearner(model, tmp_path / "torch", config, threads=1)
    assert_same(ours, updates_beside(ours, torch_learner))
    assert again.checkpoint.sha256 == ours[0].checkpoint.sha256
    assert len(victim.started) == 2
