"""What each of several GPUs holds of a run, by arithmetic done by hand."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from mappa_core.app.config import TrainConfig
from mappa_core.app.engine import engine_setup
from mappa_core.app.fitting import check_memory
from mappa_core.app.memory import (
    plan_cluster,
    plan_memory,
    planned,
    planned_where,
    shared_cache_bytes,
)
from mappa_core.app.placement import placed_on
from mappa_core.cluster.config import ClusterConfig
from mappa_core.coach.config import CoachConfig
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.models.shape import QWEN3_4B, QWEN3_14B, QWEN3_32B, ModelShape
from mappa_core.rollout.engines.vllm.command import server_flags
from mappa_core.rollout.teams import load_team
from mappa_core.train.memory_items import GB
from mappa_core.train.memory_plan import MemoryPlan

LEARNER = {"backend": "deepspeed", "gradient_checkpointing": True, "micro_batch_tokens": 8192}
ENGINE = {"max_model_length": 16_384, "gpu_memory_utilization": 0.9}


def config(
    model: str, weights: str, deepspeed: Mapping[str, object], **engine: object
) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": model,
            "learner": {**LEARNER, "weights": weights, "deepspeed": deepspeed},
            "engine": {**ENGINE, **engine},
        }
    )


def plans(given: TrainConfig, gpus: int, home: Path) -> dict[tuple[str, ...], MemoryPlan]:
    settings = Settings.model_validate({"MAPPA_HOME": home})
    return {each.gpus: each for each in plan_memory(given, settings, None, None, gpus)}


def update(planned: MemoryPlan) -> dict[str, float]:
    return {item.what: item.gpu_bytes for item in planned.items if item.phase == "update"}


@pytest.mark.parametrize(
    ("shape", "billions"), [(QWEN3_4B, 4.02), (QWEN3_14B, 14.77), (QWEN3_32B, 32.76)]
)
def test_shapes_have_the_weights_that_their_names_say(shape: ModelShape, billions: float) -> None:
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.01)


def test_one_gpu_has_the_plan_of_all_of_it(tmp_path: Path) -> None:
    given = config("Qwen/Qwen3-4B", "full", {"stage": 2, "offload": True}, colocate=True)
    (placed,) = plans(given, 1, tmp_path).values()
    alone = planned(given, QWEN3_4B, 3, 80 * GB)
    assert (placed.items, placed.cached_tokens) == (alone.items, alone.cached_tokens)


def test_of_eight_gpus_ranks_divide_the_state_and_servers_have_the_rest(tmp_path: Path) -> None:
    given = config("Qwen/Qwen3-4B", "full", {"ranks": 2, "stage": 3})
    found = plans(given, 8, tmp_path)
    learner, servers = found["0", "1"], found["2", "3", "4", "5", "6", "7"]
    weights = QWEN3_4B.parameters
    held = update(learner)
    assert held["bfloat16 weights"] == held["bfloat16 gradients"] == weights
    assert held["float32 masters, gradients, moments"] == 8 * weights
    # The output layer is the largest tensor: 151,936 x 2,560.
    assert held["weights that are gathered"] == 2 * 151_936 * 2_560
    assert learner.peak("rollout") == 0.8 * GB
    # Two replicas of three servers, each with 0.9 of a GPU of its own, and nothing to learn there.
    assert servers.peak("rollout") == pytest.approx(0.9 * 80 * GB)
    assert servers.peak("update") == servers.peak("rollout")
    assert servers.cached_tokens == int((0.9 * 80 * GB - 2 * weights - 1.5 * GB) / 147_456)
    assert learner.fits
    assert servers.fits


@pytest.mark.parametrize(
    ("stage", "state"), [(1, 12 / 4 + 4), (2, 16 / 4), (3, 16 / 4)], ids=["1", "2", "3"]
)
def test_what_is_divided_is_the_stages(stage: int, state: float, tmp_path: Path) -> None:
    found = plans(config("Qwen/Qwen3-4B", "full", {"ranks": 4, "stage": stage}), 8, tmp_path)
    held = update(found["0", "1", "2", "3"])
    weights = QWEN3_4B.parameters
    assert held["float32 masters, gradients, moments"] == state * weights
    assert held["bfloat16 weights"] == 2 * weights / (4 if stage == 3 else 1)
    assert held["bfloat16 gradients"] == 2 * weights / (4 if stage > 1 else 1)


def test_a_model_wider_than_a_gpu_is_served_by_several(tmp_path: Path) -> None:
    lora = {"ranks": 2, "stage": 3}
    narrow = plans(config("Qwen/Qwen3-32B", "lora", lora, serving="adapters"), 8, tmp_path)
    wide = config("Qwen/Qwen3-32B", "lora", lora, serving="adapters", tensor_parallel=2)
    spread = plans(wide, 8, tmp_path)
    # 65.5 GB of weights leave 0.9 of a GPU room for 13 thousand tokens; of two GPUs each has half.
    servers = narrow["2", "3", "4", "5", "6", "7"]
    assert not servers.fits
    assert 0 < servers.cached_tokens < 16_384
    adapters = 3 * 2 * QWEN3_32B.adapter_parameters(16)
    left = 0.9 * 80 * GB - QWEN3_32B.parameters - adapters - 1.5 * GB - 0.5 * GB
    per_token = QWEN3_32B.cache_bytes_per_token / 2
    servers = spread["2", "3", "4", "5", "6", "7"]
    assert servers.cached_tokens == int(left / per_token) > 100_000
    assert servers.fits
    assert spread["0", "1"].fits


def test_what_does_not_fit_names_its_gpus_and_what_spreads_it(tmp_path: Path) -> None:
    full = config("Qwen/Qwen3-32B", "full", {"ranks": 4, "stage": 3}, tensor_parallel=4)
    with pytest.raises(ConfigError, match=r"GB of GPU 0, 1, 2, 3's 80\.0: .*deepspeed\.ranks"):
        check_memory(tuple(plans(full, 16, tmp_path).values()))
    # In 0.9 of a GPU weights leave room for 18,980 tokens.
    narrow = config("Qwen/Qwen3-32B", "full", {"ranks": 8, "stage": 3}, max_model_length=20_000)
    with pytest.raises(ConfigError, match=r"a cache for 20,000 tokens.*engine\.tensor_parallel"):
        check_memory(tuple(plans(narrow, 32, tmp_path).values())[1:])
    check_memory(tuple(plans(full, 16, tmp_path).values())[1:])


def test_servers_that_share_one_of_several_gpus_are_told_their_cache(tmp_path: Path) -> None:
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})
    given = config("Qwen/Qwen3-4B", "full", {"ranks": 1, "stage": 2})
    # Of two GPUs the learner has one, and three servers the other.
    for gpus, share in ((2, 3), (3, 2)):
        placed = placed_on(given, 3, tuple(map(str, range(gpus))))
        expected = 0.9 * 80 * GB / share - 2 * QWEN3_4B.parameters - 1.5 * GB
        assert shared_cache_bytes(given, settings, 3, placed, 80 * GB) == int(expected)
        found = planned_where(given, settings, QWEN3_4B, placed, 3, 80 * GB)
        assert {each.cache_bytes for each in found} == {expected}
    placed = placed_on(given, 3, tuple("01234567"))
    assert shared_cache_bytes(given, settings, 3, placed, 80 * GB) is None


@pytest.mark.parametrize("beside", [{}, {"backend": "local", "model": "judge"}])
def test_the_cache_that_services_plan_is_on_the_servers_command_line(
    beside: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 81559\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    given = config("Qwen/Qwen3-4B", "lora", {"ranks": 1}, gpu_memory_utilization=0.5)
    given = given.model_copy(update={"coach": CoachConfig.model_validate(beside)})
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})
    team, placed = load_team("mathchat", "small-1"), placed_on(given, 3, ("0",))
    told = server_flags(engine_setup(given, settings, team, "m", (), placed), "cuda")
    assert "--enable-sleep-mode" in told
    if not beside:
        # One server alone measures what its share leaves.
        assert "--kv-cache-memory-bytes" not in told
        return
    adapters = 3 * 2 * QWEN3_4B.adapter_parameters(given.learner.lora.rank)
    left = 0.5 * 81559 * 2**20 - 2 * QWEN3_4B.parameters - adapters - 1.5 * GB
    assert told[told.index("--kv-cache-memory-bytes") + 1] == str(int(left))


def test_a_local_coach_is_on_the_first_gpu(tmp_path: Path) -> None:
    given = config("Qwen/Qwen3-4B", "full", {"ranks": 2, "stage": 3})
    coached = given.model_dump(mode="json") | {"coach": {"backend": "local", "model": "judge"}}
    found = plans(TrainConfig.model_validate(coached), 8, tmp_path)
    assert [gpus for gpus in found if "0" in gpus] == [("0",)]
    coach = "the coach's server (judge)"
    assert coach in update(found[("0",)])
    assert coach not in update(found[("1",)])


def test_each_local_coach_has_a_gpu_of_a_cluster(tmp_path: Path) -> None:
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})
    given = config("Qwen/Qwen3-4B", "full", {"ranks": 2, "stage": 3})

    def coaches(device: str) -> dict[tuple[str, ...], list[str]]:
        second = {"backend": "local", "model": "other", "share": 0.5, "server": {"device": device}}
        coach = {"backend": "local", "model": "judge", "second": second}
        sections = {"coach": coach, "cluster": {"backend": "ray"}}
        ray = TrainConfig.model_validate(given.model_dump(mode="json") | sections)
        plans = plan_cluster(ray, settings, [{"GPU": 8.0}], 80 * GB)
        found = {each.gpus: [item for item in update(each) if "coach" in item] for each in plans}
        return {gpus: items for gpus, items in found.items() if items}

    # Three servers and two ranks come first.
    first, second = "the coach's server (judge)", "the coach's server (other)"
    assert coaches("auto") == {("0.5",): [first], ("0.6",): [second]}
    assert coaches("cpu") == {("0.5",): [first]}


def test_three_32b_in_full_need_more_ranks_than_two_nodes_leave(tmp_path: Path) -> None:
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})

    def on_nodes(many: int, ranks: int) -> dict[tuple[str, ...], MemoryPlan]:
        given = config("Qwen/Qwen3-32B", "full", {"ranks": ranks, "stage": 3}, tensor_parallel=4)
        ray = given.model_copy(update={"cluster": ClusterConfig(backend="ray")})
        found = plan_cluster(ray, settings, [{"GPU": 8.0}] * many, 80 * GB)
        return {each.gpus: each for each in found}

    two, four = on_nodes(2, 4), on_nodes(4, 16)
    ranks = ("1.4", "1.5", "1.6", "1.7")
    assert [gpus for gpus, each in two.items() if not each.fits] == [ranks]
    with pytest.raises(ConfigError, match=r"GPU 1\.4, 1\.5, 1\.6, 1\.7"):
        check_memory(tuple(two.values()))
    assert all(each.fits for each in four.values())
    servers = next(gpus for gpus in four if "0.0" in gpus)
    assert servers == (*(f"0.{gpu}" for gpu in range(8)), "1.0", "1.1", "1.2", "1.3")
    with pytest.raises(ConfigError, match="nodes have 2 x 8 GPU"):
        on_nodes(2, 16)
