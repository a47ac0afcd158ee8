"""What the paper's experiment would take, without a key and without asking anybody."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mappa_cli.main import app
from mappa_core.core.errors import ConfigError

DATA = Path(__file__).parents[4] / "shared/data"
RUNNER = CliRunner()


def test_a_dry_run_forecasts_cost_hours_and_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (DATA / "AIME_1983_2024.json").exists():
        pytest.skip("the competition problems are not beside the project")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path))
    train, held_out = DATA / "AIME_1983_2024.json", DATA / "amc_eval_32.json"
    both = f"{held_out},{DATA / 'aime_2025.json'}"
    words = [f"problems.train_files=[{train}]", f"problems.held_out_files=[{both}]"]
    result = RUNNER.invoke(app, ["reproduce", "mathchat", "--dry-run", "--json", *words])
    assert result.exit_code == 0, result.output
    figures = {name: value for name, value, _ in json.loads(result.output)}
    # 128 iterations of 64 episodes with one action per agent.
    assert figures["coach gemini-2.5-flash: calls"] == 128 * 64 * 3
    assert figures["coach gemini-2.5-flash: cost"] > 1
    assert figures["sampling"] > 0
    assert figures["updates"] > 0
    assert figures["chance to see a gain of 0.0 points"] < 0.1
    # 62 problems tell more than the 30 of one contest.
    alone = [figures[f"{name}: chance to see a gain of 17.5 points"] for name in ("aime", "amc")]
    assert max(alone) < figures["chance to see a gain of 17.5 points"]
    assert (
        figures["chance to see a gain of 5.0 points"]
        < figures["chance to see a gain of 17.5 points"]
    )


def test_it_starts_nothing_by_itself() -> None:
    result = RUNNER.invoke(app, ["reproduce", "mathchat"])
    assert isinstance(result.exception, ConfigError)
    assert "--dry-run" in str(result.exception)
    result = RUNNER.invoke(app, ["reproduce", "go"])
    assert "choose from mathchat" in str(result.exception)


@pytest.mark.parametrize(("gpu", "code"), [("true", 0), ("false", 1)])
def test_doctor_prints_the_memory_plan(tmp_path: Path, gpu: str, code: int) -> None:
    preset = Path(__file__).parents[3] / "configs/mathchat_paper.yaml"
    changed = tmp_path / "preset.yaml"
    changed.write_text(preset.read_text().replace("colocate: true", f"colocate: {gpu}"))
    result = RUNNER.invoke(app, ["doctor", "--plan", str(changed)])
    assert result.exit_code == code
    assert "key-value cache" in result.output
    for_script = RUNNER.invoke(app, ["doctor", "--plan", str(changed), "--json"])
    assert for_script.exit_code == code
    assert json.loads(for_script.output)["fits"] is (code == 0)


def test_the_preset_of_the_folder_one_stands_in_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mathchat_paper.yaml").write_text("name: 3")
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["reproduce", "mathchat", "--dry-run"])
    assert isinstance(result.exception, ConfigError)
    assert "name" in str(result.exception)
