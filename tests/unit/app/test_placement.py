"""Servers and learner on declared GPUs."""

import pytest

from mappa_core.app.config import TrainConfig
from mappa_core.app.placement import (
    Placement,
    experimental,
    learns_apart,
    place,
    placed_on,
)
from mappa_core.core.errors import ConfigError
from mappa_core.rollout.config import EngineConfig
from mappa_core.train.config import DeepspeedConfig, LearnerConfig

EIGHT = tuple("01234567")


def placed(
    gpus: tuple[str, ...],
    *,
    kinds: int = 1,
    ranks: int = 1,
    learner: LearnerConfig | None = None,
    **engine: object,
) -> Placement:
    trains = learner or LearnerConfig(backend="deepspeed", deepspeed=DeepspeedConfig(ranks=ranks))
    plays = EngineConfig.model_validate(engine)
    return place(plays, trains, kinds=kinds, engine_gpus=gpus, learner_gpus=gpus)


def test_one_gpu_is_shared() -> None:
    found = placed(("0",), kinds=3)
    assert (found.servers, found.replicas, found.learner) == ((("0",),) * 3, 1, ("0",))
    assert found.gpus == ("0",)


def test_of_eight_the_learner_has_the_first_and_replicas_fill_the_rest() -> None:
    found = placed(EIGHT, ranks=4)
    assert found.learner == ("0", "1", "2", "3")
    assert found.servers == (("4",), ("5",), ("6",), ("7",))
    assert found.replicas == 4


def test_a_server_for_each_agent_is_a_replica_together() -> None:
    found = placed(EIGHT, kinds=3, ranks=2)
    assert found.replicas == 2
    assert found.servers == (("2",), ("3",), ("4",), ("5",), ("6",), ("7",))


def test_servers_share_what_there_is_where_it_is_too_little() -> None:
    found = placed(EIGHT[:3], kinds=3)
    assert (found.replicas, found.servers) == (1, (("1",), ("2",), ("1",)))


def test_weights_are_spread_over_neighbours_and_the_rest_stays_free() -> None:
    found = placed(EIGHT, ranks=1, tensor_parallel=2)
    assert found.servers == (("1", "2"), ("3", "4"), ("5", "6"))
    assert "7" not in found.gpus


def test_a_learner_that_needs_all_shares_them() -> None:
    found = placed(EIGHT, ranks=8, tensor_parallel=4)
    assert found.learner == EIGHT
    assert found.servers == (EIGHT[:4], EIGHT[4:])


def test_servers_that_sleep_have_all() -> None:
    found = placed(EIGHT[:2], ranks=2, colocate=True)
    assert (found.servers, found.learner) == ((("0",), ("1",)), ("0", "1"))


@pytest.mark.parametrize(
    ("gpus", "sections", "sleeps"),
    [
        (1, {}, True),
        (1, {"engine": {"colocate": False}}, False),
        # They play while agents learn.
        (1, {"rollout": {"async_level": 1}}, False),
        (2, {}, False),
        (2, {"engine": {"colocate": True}}, True),
        # The learner has both, and so have they.
        (2, {"learner": {"backend": "deepspeed", "deepspeed": {"ranks": 2}}}, True),
        # It learns elsewhere.
        (1, {"learner": {"deployment": "update/gpu"}}, False),
        (1, {"engine": {"backend": "transformers"}}, False),
        (0, {}, False),
        (0, {"engine": {"colocate": True}}, False),
    ],
)
def test_servers_sleep_where_they_share_a_gpu_with_the_learner(
    gpus: int, sections: dict[str, object], sleeps: bool
) -> None:
    config = TrainConfig.model_validate(sections)
    assert placed_on(config, 3, EIGHT[:gpus]).sleeps == sleeps


def test_agents_that_update_at_once_have_gpus_of_their_own() -> None:
    config = LearnerConfig(
        backend="deepspeed", updates_at_once=3, deepspeed=DeepspeedConfig(ranks=2)
    )
    assert placed(EIGHT, learner=config).learner == EIGHT[:6]
    with pytest.raises(ConfigError, match="needs 6 GPUs, and the learner has 4: lower one of them"):
        placed(EIGHT[:4], learner=config)


def test_places_are_those_among_the_visible_gpus() -> None:
    seen = ("2", "5", "GPU-8f")
    named = LearnerConfig(backend="deepspeed", devices=(1,))
    found = placed(seen, learner=named, devices=(2, 0), replicas=1, tensor_parallel=2)
    assert (found.servers, found.learner) == ((("GPU-8f", "2"),), ("5",))
    with pytest.raises(ConfigError, match=r"engine.devices=\[3\]: there are 3 GPUs, from 0 to 2"):
        placed(seen, devices=(3,))


def test_replicas_that_are_asked_for_share_in_turn() -> None:
    assert placed(("0", "1"), replicas=3).servers == (("1",), ("1",), ("1",))


def test_weights_that_are_sent_go_to_the_first_gpu() -> None:
    assert placed(EIGHT, weight_sync="nccl", serving="merged").servers == (("0",),)
    with pytest.raises(ConfigError, match=r"engine\.weight_sync=nccl sends weights to one GPU"):
        placed(EIGHT, weight_sync="nccl", replicas=2)


def test_a_server_wider_than_the_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.tensor_parallel=4 needs as many GPUs"):
        placed(EIGHT[:2], tensor_parallel=4)


def test_the_torch_learner_has_the_first() -> None:
    assert placed(EIGHT, learner=LearnerConfig()).learner == ("0",)
    assert placed(EIGHT, learner=LearnerConfig(devices=(0,))).learner == ("0",)
    with pytest.raises(ConfigError, match=r"learner\.backend=torch has the first GPU"):
        placed(EIGHT, learner=LearnerConfig(devices=(3,)))


def test_servers_that_run_already_are_not_placed() -> None:
    found = placed(EIGHT, ranks=2, urls=("http://pod:8000",))
    assert (found.servers, found.learner, found.gpus) == ((), ("0", "1"), ("0", "1"))


def test_a_cpu_has_replicas_and_no_devices() -> None:
    found = placed((), kinds=2, replicas=2)
    assert (found.servers, found.replicas, found.learner) == (((),) * 4, 2, ())
    for refused in (EngineConfig(tensor_parallel=2), EngineConfig(devices=(0,))):
        with pytest.raises(ConfigError, match="are of GPUs, and the engine is on a CPU"):
            place(refused, LearnerConfig(), kinds=1, engine_gpus=(), learner_gpus=())


@pytest.mark.parametrize(
    ("engine", "gpus", "named"),
    [
        ({}, 0, None),
        ({"colocate": False}, 1, None),
        ({}, 1, "servers that sleep while agents learn (engine.colocate)"),
        ({}, 2, "2 GPUs"),
        ({"tensor_parallel": 2}, 3, "engine.tensor_parallel=2, 3 GPUs"),
        ({"weight_sync": "ipc", "colocate": False}, 1, "engine.weight_sync=ipc"),
        ({"urls": ("http://pod:8000",)}, 1, "engine.urls"),
    ],
)
def test_what_no_gpu_has_run_says_so(
    engine: dict[str, object], gpus: int, named: str | None
) -> None:
    config = TrainConfig.model_validate({"engine": engine})
    found = experimental(config, placed_on(config, 3, EIGHT[:gpus]))
    said = None if named is None else f"experimental: {named} (tested"
    assert (found and found[: len(said or "")]) == said


def test_a_learner_beside_a_cluster_of_gpus_says_that_it_has_none() -> None:
    torch = LearnerConfig()
    assert "set learner.backend=deepspeed" in str(learns_apart(torch, "cuda"))
    assert learns_apart(torch, "cpu") is None
    assert learns_apart(LearnerConfig(backend="deepspeed"), "cuda") is None
    assert learns_apart(LearnerConfig(deployment="update/gpu"), "cuda") is None
