"""A run that memory or disk do not hold is refused by name before anything is written."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mappa_cli.commands.train import overrulings
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.fitting import (
    SPARE_BYTES,
    check_fits,
    check_memory,
    check_space,
    disk_need,
    host_shortage,
    memory_plan,
)
from mappa_core.app.memory import planned
from mappa_core.core.errors import ConfigError, DiskFull
from mappa_core.core.machine import machine_bytes
from mappa_core.core.settings import Settings
from mappa_core.models.shape import QWEN3_4B, QWEN3_32B, SMOLLM2_135M
from mappa_core.train.memory_plan import GB

CONFIGS = Path(__file__).parents[3] / "configs"
TERABYTE = 1000 * GB


def settings(home: Path) -> Settings:
    return Settings.model_validate({"MAPPA_HOME": home})


def test_what_memory_does_not_hold_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    # A sequence of a million tokens is read whole; no machine of these tests has its activations.
    huge = TrainConfig.model_validate(
        {"engine": {"max_model_length": 2**20, "kv_cache_gib": 50, "device": "cpu"}}
    )
    home = tmp_path / "home"
    with pytest.raises(ConfigError, match=r"needs [\d.]+ GB of the CPU's .* --despite memory"):
        check_fits(huge, settings(home), 3)
    check_fits(huge, settings(home), 3, ["memory"])
    assert not home.exists()


def test_a_gpus_plan_says_what_is_short() -> None:
    paper = load_config(CONFIGS / "mathchat_paper.yaml")
    check_memory([planned(paper, QWEN3_4B, 3, 80 * GB)])
    with pytest.raises(ConfigError, match=r"needs 39\.1 GB of the GPU's 30\.0"):
        check_memory([planned(paper, QWEN3_4B, 3, 30 * GB)])
    longer = load_config(CONFIGS / "mathchat_paper.yaml", ["engine.max_model_length=60000"])
    with pytest.raises(ConfigError, match=r"a cache for 60,000 tokens and has one for 54,626"):
        check_memory([planned(longer, QWEN3_4B, 3, 80 * GB)])


def test_a_run_on_a_gpu_needs_the_cpus_memory_too() -> None:
    paper = load_config(CONFIGS / "mathchat_paper.yaml")
    plans = [planned(paper, QWEN3_4B, 3, 80 * GB)]
    assert host_shortage(plans, 96 * GB) == ""
    assert "needs 88.5 GB of the CPU's 64.0 beside its GPU" in host_shortage(plans, 64 * GB)
    twice = [replace(plans[0], gpus=("0", "1"))]
    assert "needs 177.0 GB of the CPU's 96.0" in host_shortage(twice, 96 * GB)


def test_the_memory_of_a_clusters_nodes_is_not_this_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ([{"GPU": 8.0}] * 4, 80 * GB)
    monkeypatch.setattr("mappa_core.app.fitting.gpus_of", lambda _: nodes)
    monkeypatch.setattr("mappa_core.app.fitting.machine_bytes", lambda: 16 * GB)
    ranks = {"backend": "deepspeed", "deepspeed": {"ranks": 8, "stage": 2}, "weights": "lora"}
    ranks |= {"gradient_checkpointing": True, "micro_batch_tokens": 4096}
    wide = {"tensor_parallel": 4, "serving": "adapters"}
    sections = {"model": "Qwen/Qwen3-32B", "learner": ranks, "engine": wide}
    config = TrainConfig.model_validate({**sections, "cluster": {"backend": "ray"}})
    plans = memory_plan(config, settings(tmp_path), QWEN3_32B, 3)
    assert "of the CPU's 16.0" in host_shortage(plans, 16 * GB)
    check_fits(config, settings(tmp_path), 3, ["disk"])


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_has_the_memory_that_it_may_take(tmp_path: Path, name: str) -> None:
    (tmp_path / "memory").mkdir()
    limit = tmp_path / name
    for unlimited in ("max\n", f"{2**63 - 4096}\n"):
        limit.write_text(unlimited)
        assert machine_bytes(tmp_path) == machine_bytes(tmp_path / "none")
    limit.write_text(f"{2**30}\n")
    assert machine_bytes(tmp_path) == 2**30


def test_of_a_run_that_learns_elsewhere_the_rest_is_planned(tmp_path: Path) -> None:
    apart = {"learner": {"deployment": "update/gpu", "backend": "deepspeed"}}
    elsewhere = TrainConfig.model_validate(apart | {"engine": {"device": "cpu"}})
    here = TrainConfig.model_validate({"engine": {"device": "cpu"}, "learner": {"device": "cpu"}})
    (whole,) = memory_plan(here, settings(tmp_path), SMOLLM2_135M, 3)
    (rest,) = memory_plan(elsewhere, settings(tmp_path), SMOLLM2_135M, 3)
    assert rest.host_peak("update") == rest.host_peak("rollout")
    model = 4 * SMOLLM2_135M.parameters
    assert rest.host_peak("rollout") == whole.host_peak("rollout") - model < whole.host_bytes
    huge = {"engine": {"max_model_length": 2**20, "kv_cache_gib": 1000, "device": "cpu"}}
    with pytest.raises(ConfigError, match=r"needs [\d.]+ GB of the CPU's"):
        check_fits(TrainConfig.model_validate(apart | huge), settings(tmp_path), 3)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"engine": {"urls": ["http://a:1"], "serving": "adapters"}}, "engine.urls have their"),
        ({"engine": {"backend": "transformers", "device": "cpu"}}, "engine.backend=transformers"),
        ({"learner": {"backend": "deepspeed"}}, "learner.backend=deepspeed has none on a CPU"),
        ({"model": "of/nobody"}, "the shape of of/nobody is not known here"),
    ],
)
def test_the_start_says_why_there_is_no_memory_plan(
    given: dict[str, object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told: list[str] = []
    config = TrainConfig.model_validate(given)
    check_fits(config, settings(tmp_path), 3, tell=told.append)
    (line,) = told
    assert line.startswith("no memory plan: ")
    assert reason in line
    check_fits(TrainConfig(), settings(tmp_path), 3, tell=told.append)
    assert told == [line]


def test_the_disk_holds_what_a_run_keeps() -> None:
    quickstart = load_config(CONFIGS / "quickstart.yaml")
    need = disk_need(quickstart, SMOLLM2_135M, 3)
    # Seen on disk after such a run: 1.7 GiB of checkpoints, 30 of 57 MB, and 561 MiB of float32
    # where all 10 of each agent were registered.
    assert need.checkpoints / 2**30 == pytest.approx(1.65, abs=0.1)
    assert 2 * need.registered / 2**20 == pytest.approx(561 * 2 / 10, rel=0.02)
    paper = load_config(CONFIGS / "mathchat_paper.yaml")
    whole = disk_need(paper, QWEN3_4B, 3)
    weights = QWEN3_4B.parameters
    assert whole.checkpoints == 3 * (3 + 2) * 12 * weights
    assert whole.registered == 3 * 2 * 2 * weights
    every = load_config(
        CONFIGS / "mathchat_paper.yaml",
        ["tracking.versions=every", "tracking.registered_dtype=float32"],
    )
    # 16 GB for each of 3 agents after each of 128 updates.
    assert disk_need(every, QWEN3_4B, 3).registered == pytest.approx(6.2 * TERABYTE, rel=0.01)
    assert whole.served == 3 * 4 * weights
    assert disk_need(paper, QWEN3_4B, 3, on_gpu=True).served == 3 * 2 * weights
    adapters = load_config(CONFIGS / "mathchat.yaml")
    assert disk_need(adapters, QWEN3_4B, 3, on_gpu=True).served == 0
    assert whole.total > whole.checkpoints + whole.registered + SPARE_BYTES


def test_what_the_disk_does_not_hold_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    many = TrainConfig.model_validate({"rollout": {"iterations": 10**7}})
    home = tmp_path / "home"
    with pytest.raises(DiskFull, match=r"GiB free and this needs \d+: .*--despite disk"):
        check_fits(many, settings(home), 3)
    check_fits(many, settings(home), 3, ["disk"])
    check_space(home)
    assert not home.exists()


def test_only_refusals_that_there_are_can_be_overruled() -> None:
    assert overrulings(["disk", "memory", "disk"]) == ("memory", "disk")
    with pytest.raises(ConfigError, match="--despite time: it takes memory or disk"):
        overrulings(["time"])
