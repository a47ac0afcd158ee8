"""Why ranks are no `TorchTrainer`: it takes places of its own, beside those that a run has.

Where this fails Ray has learnt to be given places, and docs/decisions.md is to be read again.
"""

from pathlib import Path

import pytest
import ray
from ray.util import placement_group_table
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.local_nodes import LocalNodes
from mappa_core.cluster.ray_places import connected

pytest.importorskip("ray.train.torch", reason="what Ray Train needs is not installed here")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Trains:
    """An actor of the run's group, whose children are captured in it."""

    def fit(self, folder: str) -> int:
        """Train nothing on one worker; returns how many placement groups there were meanwhile."""
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        def groups() -> None:
            states = [group["state"] for group in placement_group_table().values()]
            Path(folder, "groups").write_text(str(states.count("CREATED")))

        scaling = ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1})
        running = RunConfig(storage_path=folder, name="trainer")
        TorchTrainer(groups, scaling_config=scaling, run_config=running).fit()
        return int(Path(folder, "groups").read_text())


def test_a_trainer_makes_a_group_of_its_own(cluster: LocalNodes, tmp_path: Path) -> None:
    folder = str(tmp_path)
    with connected(ClusterConfig(backend="ray", address=cluster.address)):
        group = placement_group([{"CPU": 2}])
        ray.get(group.ready())
        inside = PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_capture_child_tasks=True
        )
        actor = ray.remote(Trains).options(num_cpus=1, scheduling_strategy=inside).remote()
        assert ray.get(actor.fit.remote(folder)) == 2
        remove_placement_group(group)
