"""`mappa doctor --plan --nodes` has room where Ray has, over as many nodes: simulated GPUs."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from mappa_cli.doctor import find_cluster
from mappa_core.app.cluster import request
from mappa_core.app.config import TrainConfig
from mappa_core.app.fitting import check_memory, memory_plan
from mappa_core.cluster.bundles import Request, assigned
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.local_nodes import LocalNodes, local_nodes
from mappa_core.cluster.ray_places import connected, nodes, placed
from mappa_core.core.errors import ClusterError, ConfigError, Unplanned
from mappa_core.core.settings import Settings
from mappa_core.models.shape import SMOLLM2_135M

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
AGENTS = 3
FULL = {"backend": "deepspeed", "weights": "full"}
RUNS: Mapping[str, Mapping[str, object]] = {
    "3 x 4B full": {"learner": {**FULL, "deepspeed": {"ranks": 2, "stage": 3}}},
    "3 x 14B LoRA": {
        "learner": {"backend": "deepspeed", "deepspeed": {"ranks": 1}},
        "engine": {"replicas": 2},
    },
    "3 x 14B LoRA, a coach": {
        "learner": {"backend": "deepspeed", "deepspeed": {"ranks": 1}},
        "engine": {"replicas": 7},
        "coach": {"backend": "local", "model": "judge"},
    },
    "3 x 32B full": {
        "learner": {**FULL, "deepspeed": {"ranks": 16, "stage": 3}},
        "engine": {"tensor_parallel": 4},
    },
}
ROOM = {(1, 1): set[str](), (1, 8): {"3 x 4B full", "3 x 14B LoRA"}, (4, 8): set(RUNS)}


@pytest.mark.parametrize("shape", ROOM)
def test_the_plan_has_room_where_ray_has(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    many, gpus = shape
    with local_nodes(many, cpus=32, gpus=gpus) as cluster:
        found: set[str] = set()
        for name, sections in RUNS.items():
            for placement in ("pack", "strict_pack", "spread", "strict_spread"):
                own = ClusterConfig.model_validate(
                    {
                        "backend": "ray",
                        "address": cluster.address,
                        "placement": placement,
                        "wait_seconds": 5,
                    }
                )
                config = TrainConfig.model_validate({**sections, "cluster": own.model_dump()})
                asked = request(config, AGENTS, "cuda")
                with connected(own):
                    planned = assigned(asked, nodes(), own)
                    found_by_ray = _nodes_used(own, asked, cluster)
                    assert len({*planned}) == found_by_ray, (name, placement)
                if planned and placement == "pack":
                    found.add(name)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        seen = find_cluster(Settings())
    # The head, which takes no work, is a node as well.
    assert seen.works
    assert seen.found.endswith(f"1 x 0 CPU and 0 GPU, {many} x 32 CPU and {gpus} GPU")
    assert found == ROOM[shape]


def _nodes_used(config: ClusterConfig, asked: Request, cluster: LocalNodes) -> int:
    """Count the nodes over which Ray places it; 0 where it has no room."""
    try:
        with placed(config, asked):
            return len({cluster.node_of(number) for number in range(len(asked.bundles))})
    except ClusterError:
        return 0


def test_a_run_is_refused_by_the_memory_that_its_nodes_say_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig.model_validate({**RUNS["3 x 14B LoRA"], "cluster": {"backend": "ray"}})
    says = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with local_nodes(1, cpus=32, gpus=8) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        # A node whose GPUs are declared alone says nothing, and nothing is made up for it.
        with pytest.raises(Unplanned, match="no GPU that says its memory"):
            memory_plan(config, Settings(), SMOLLM2_135M, AGENTS)
        _printing(says, "81559\n2048")
        with pytest.raises(ConfigError, match=r"GB of GPU \d\.\d.*'s 2\.1: .*--despite memory"):
            check_memory(memory_plan(config, Settings(), SMOLLM2_135M, AGENTS))
        _printing(says, "81559\n81559")
        check_memory(memory_plan(config, Settings(), SMOLLM2_135M, AGENTS))
        crowded = config.model_copy(
            update={"engine": config.engine.model_copy(update={"replicas": 9})}
        )
        with pytest.raises(ConfigError, match=r"no room for .* nodes have"):
            memory_plan(crowded, Settings(), SMOLLM2_135M, AGENTS)


def _printing(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
    program.chmod(0o755)
