"""What of a run goes into a cluster, and what cannot."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from mappa_core.app.cluster import OnRay, device_in, placed_in, request
from mappa_core.app.config import TrainConfig
from mappa_core.app.engine import engine_setup
from mappa_core.app.placement import experimental, placement
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.rollout.engines.vllm.command import server_flags
from mappa_core.rollout.engines.vllm.engine import turns
from mappa_core.rollout.teams import load_team

RAY = {"cluster": {"backend": "ray", "cpus": 2}}
AGENTS = 3


def config(**sections: object) -> TrainConfig:
    return TrainConfig.model_validate({**RAY, **sections})


def test_full_weights_have_a_server_for_each_agent_and_replica_and_a_rank_for_each_gpu() -> None:
    deepspeed = {"ranks": 4, "stage": 3}
    full = config(
        learner={"backend": "deepspeed", "weights": "full", "deepspeed": deepspeed},
        engine={"tensor_parallel": 2, "replicas": 2},
    )
    asked = request(full, AGENTS, "cuda")
    assert (asked.servers, asked.server_gpus, asked.ranks, asked.rank_gpus) == (6, 2, 4, 1)


def test_adapters_share_a_server_and_the_torch_learner_stays_here() -> None:
    asked = request(config(), AGENTS, "cuda")
    assert (asked.servers, asked.server_gpus, asked.ranks) == (1, 1, 0)


def test_updates_at_once_have_ranks_of_their_own() -> None:
    deepspeed = {"backend": "deepspeed", "updates_at_once": 3, "deepspeed": {"ranks": 2}}
    asked = request(config(learner=deepspeed), AGENTS, "cpu")
    assert (asked.ranks, asked.rank_gpus, asked.cpus) == (6, 0, 2.0)
    assert request(config(learner=deepspeed), AGENTS, "cpu", trains=False).ranks == 0


def test_each_server_of_a_local_coach_has_a_place() -> None:
    judge = {"backend": "local", "model": "judge"}
    shared = {"coach": judge | {"second": judge | {"share": 1.0}}}
    assert request(config(**shared), AGENTS, "cuda").coach_gpus == (1,)
    other = {"backend": "local", "model": "other", "share": 1.0, "server": {"device": "cpu"}}
    two = config(coach=judge | {"second": other})
    assert request(two, AGENTS, "cuda").coach_gpus == (1, 0)
    assert request(two, AGENTS, "cpu").coach_gpus == (0, 0)
    assert request(two, AGENTS, "cuda", trains=False).coach_gpus == ()
    on_gpu = config(coach=judge | {"server": {"device": "cuda"}})
    with pytest.raises(ConfigError, match=r"coach\.server\.device=cuda"):
        request(on_gpu, AGENTS, "cpu")


def test_each_server_there_has_its_gpus_for_itself(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed here")
    full = config(learner={"weights": "full"}, engine={"gpu_memory_utilization": 0.9})
    places: Any = SimpleNamespace(request=request(full, AGENTS, "cuda"))
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})
    team, placed = load_team("mathchat", "small-1"), placement(full, AGENTS)
    setup = OnRay(places=places, device="cuda", ranks=1).setup(
        engine_setup(full, settings, team, "m", (), placed)
    )
    flags = server_flags(setup, "cuda")
    assert flags[flags.index("--gpu-memory-utilization") + 1] == "0.900"
    assert turns(setup.devices, on_gpu=True) == [[0], [1], [2]], "they start at once"


def test_nothing_of_it_is_placed_on_this_machine() -> None:
    placed = placement(config(engine={"tensor_parallel": 8}), AGENTS)
    assert (placed.servers, placed.learner) == ((), ())
    said = experimental(config(), placed)
    assert said is not None
    assert "cluster.backend=ray" in said


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"engine": {"colocate": True}}, "engine.colocate"),
        ({"engine": {"devices": [0]}}, "engine.devices"),
        ({"engine": {"backend": "transformers"}}, "engine.backend"),
        ({"learner": {"devices": [0]}}, "learner.devices"),
        ({"learner": {"deployment": "update/gpu"}}, "learner.deployment"),
    ],
)
def test_what_ray_places_is_not_placed_by_hand(sections: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError, match=f"places servers and ranks itself: leave {key} as"):
        config(**sections)


def test_a_device_is_that_of_the_cluster() -> None:
    assert device_in("auto", gpus=True) == "cuda"
    assert device_in("auto", gpus=False) == "cpu"
    assert device_in("cpu", gpus=True) == "cpu"
    with pytest.raises(ConfigError, match="no node of the cluster declares a GPU"):
        device_in("cuda", gpus=False)


def test_a_resumed_run_may_move_into_a_cluster() -> None:
    assert config().same_experiment(TrainConfig()) == ()


def test_gpus_are_named_by_node_and_a_run_without_room_says_what_there_is() -> None:
    deepspeed = {"backend": "deepspeed", "weights": "full", "deepspeed": {"ranks": 2, "stage": 3}}
    full = config(learner=deepspeed, engine={"tensor_parallel": 2})
    placed = placed_in(full, AGENTS, [{"GPU": 4.0}, {"GPU": 4.0}])
    assert placed.servers == (("0.0", "0.1"), ("0.2", "0.3"), ("1.0", "1.1"))
    assert placed.learner == ("1.2", "1.3")
    with pytest.raises(ConfigError, match=r"no room for 3 server\(s\) .*: nodes have 1 x 7 GPU"):
        placed_in(full, AGENTS, [{"GPU": 7.0}])
