"""What of a run goes into a cluster, and what cannot."""

import pytest
from pydantic import ValidationError

from mappa_core.app.cluster import device_in, placed_in, request
from mappa_core.app.config import TrainConfig
from mappa_core.app.placement import experimental, placement
from mappa_core.core.errors import ConfigError

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
