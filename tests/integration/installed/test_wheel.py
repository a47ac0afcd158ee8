"""The wheel in a fresh environment: it brings all it needs, and trains from an empty folder."""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.tiny_model import save_tiny_model

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "pip", "wheel", "--no-deps", str(ROOT), "-w", str(folder)], ROOT)
    (file,) = folder.glob("mappa-*.whl")
    return file


@pytest.fixture(scope="module")
def mappa(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `mappa` of an environment where nothing but the wheel was asked for."""
    folder = tmp_path_factory.mktemp("environment")
    _run([sys.executable, "-m", "venv", str(folder)], ROOT)
    _run([str(folder / "bin/python"), "-m", "pip", "install", "-q", str(wheel)], ROOT)
    return folder / "bin/mappa"


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty MAPPA_HOME that the embedded server's own user may pass through."""
    with tempfile.TemporaryDirectory(prefix="mappa-wheel-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def _run(command: Sequence[str], folder: Path, home: Path | None = None) -> str:
    # What the tests run with must not leak into the environment under test.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if home is not None:
        environment["MAPPA_HOME"] = str(home)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_it_carries_what_runs_need_and_takes_no_common_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "flows",
        "mappa_cli",
        "mappa_core",
    }
    assert "mappa_core/app/configs/quickstart.yaml" in names
    assert any(name.startswith("mappa_core/store/migrations/versions/20") for name in names)
    assert any(name.startswith("mappa_core/coach/rubrics/mathchat/") for name in names)
    assert any(name.startswith("mappa_core/rollout/teams/prompts/mathchat/") for name in names)


def test_it_trains_from_an_empty_folder(mappa: Path, home: Path, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    settings = [
        f"model={model}",
        "engine.backend=transformers",
        "rollout.iterations=1",
        "rollout.problems=2",
        "rollout.episodes_per_problem=2",
        "rollout.max_tokens=8",
        "problems.held_out_size=2",
    ]
    _run([str(mappa), "train", "--config", "configs/quickstart.yaml", *settings], tmp_path, home)
    (run,) = json.loads(_run([str(mappa), "runs", "--json"], tmp_path, home))
    assert run["status"] == "completed"
