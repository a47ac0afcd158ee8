"""What `mappa doctor` says of this machine."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mappa_cli.doctor import coach_keys, find_cluster, find_credentials
from mappa_cli.main import app
from mappa_core.coach.config import CoachConfig
from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.core import machine
from mappa_core.core.settings import Settings

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in PROVIDERS.values():
        for name in filter(None, (row.needs, *row.also_reads)):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", [row.needs for row in PROVIDERS.values() if row.needs])
def test_the_key_of_any_provider_is_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "very-secret")
    found = find_credentials(Settings())
    assert (found.works, found.found, found.advice) == (True, f"{name} set", "")


def test_without_a_key_it_says_which_ones_there_are() -> None:
    found = find_credentials(Settings())
    assert not found.works
    assert found.found == "none: rule and local coaches need none"
    assert all(row.needs in found.advice for row in PROVIDERS.values() if row.needs)


def test_a_coach_is_told_the_key_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    asked = CoachConfig(backend="gemini", model="m")
    assert coach_keys(asked, Settings()) == ("coach gemini m needs GOOGLE_API_KEY: not set",)
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    assert coach_keys(asked, Settings()) == ("coach gemini m needs GOOGLE_API_KEY: set",)
    keyless = CoachConfig(backend="openai", model="m", base_url="http://127.0.0.1:1")
    assert coach_keys(keyless, Settings()) == coach_keys(CoachConfig(), Settings()) == ()


def test_without_an_address_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = find_cluster(Settings())
    assert (found.works, found.found) == (False, "none: RAY_ADDRESS is not set")


@pytest.fixture
def without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "gpu_bytes", lambda: None)
    monkeypatch.setattr(machine, "machine_bytes", lambda: 20 * 10**9)


@pytest.mark.usefixtures("without_a_gpu")
def test_a_plan_for_a_small_machine_is_that_of_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["doctor", "--plan", str(QUICKSTART)]
    enough = CliRunner().invoke(app, asked)
    assert enough.exit_code == 0, enough.output
    # 9.8, which configs/ and prefect.yaml round up, too.
    assert "CPU at most 11 GB" in enough.output
    monkeypatch.setattr(machine, "machine_bytes", lambda: 9 * 10**9)
    small = CliRunner().invoke(app, asked)
    assert small.exit_code == 1
    assert "CPU: 9 GB, all agents: does not fit" in small.output
    assert CliRunner().invoke(app, [*asked, "--gpus", "1"]).exit_code == 0


RUNS = {
    "3 x 4B full": (
        "{model: Qwen/Qwen3-4B, learner: {backend: deepspeed, weights: full, "
        "gradient_checkpointing: true, deepspeed: {ranks: 2, stage: 3}}}"
    ),
    "3 x 14B LoRA": (
        "{model: Qwen/Qwen3-14B, learner: {backend: deepspeed, gradient_checkpointing: true, "
        "deepspeed: {ranks: 1}}, engine: {replicas: 2}}"
    ),
    "3 x 32B full": (
        "{model: Qwen/Qwen3-32B, learner: {backend: deepspeed, weights: full, "
        "gradient_checkpointing: true, deepspeed: {ranks: 16, stage: 3}}, "
        "engine: {tensor_parallel: 4}}"
    ),
}


@pytest.mark.usefixtures("without_a_gpu")
@pytest.mark.parametrize(
    ("nodes", "gpus", "fits"),
    [(1, 1, set[str]()), (1, 8, {"3 x 4B full", "3 x 14B LoRA"}), (4, 8, set(RUNS))],
)
def test_a_cluster_is_planned_for_and_what_it_lacks_is_said(
    nodes: int, gpus: int, fits: set[str], tmp_path: Path
) -> None:
    for name, text in RUNS.items():
        file = tmp_path / "run.yaml"
        file.write_text(text)
        asked = ["doctor", "--plan", str(file), "--nodes", str(nodes), "--gpus", str(gpus)]
        told = CliRunner().invoke(app, asked)
        assert (told.exit_code == 0) == (name in fits), (name, told.output)
        if name in fits:
            assert "fits" in told.output
            assert "does not fit" not in told.output
        else:
            refused = str(told.exception)
            assert f"nodes have {nodes} x {gpus} GPU; lower engine.replicas" in refused


@pytest.mark.usefixtures("without_a_gpu")
def test_a_plan_is_of_the_disk_as_well(tmp_path: Path) -> None:
    long = tmp_path / "long.yaml"
    text = QUICKSTART.read_text()
    assert "iterations: 10" in text
    long.write_text(
        text.replace("iterations: 10", "iterations: 10_000_000").replace(
            "learner:", "learner:\n  keep_checkpoints: null"
        )
    )
    refused = CliRunner().invoke(app, ["doctor", "--plan", str(long)])
    assert refused.exit_code == 1
    assert "mappa train --despite disk" in refused.output
    (line,) = [line for line in refused.output.splitlines() if line.startswith("disk at most")]
    assert f"GB are free for {tmp_path}" in line
    as_json = CliRunner().invoke(app, ["doctor", "--plan", str(long), "--json"])
    told = json.loads(as_json.output)
    assert (as_json.exit_code, told["fits"], told["plans"][0]["fits"]) == (1, False, True)
    assert told["disk"]["free"] < told["disk"]["total"]
    # Of a machine that is not this one the disk is another, too.
    assert CliRunner().invoke(app, ["doctor", "--plan", str(long), "--gpus", "1"]).exit_code == 0
