"""Two runs at once, on one database and one machine, do what each does alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mappa_core.app.config import TrainConfig
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.settings import Settings
from mappa_core.store.opening import opened_store
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.test_killed import Victim, play_here, weights

SMALL = (
    "name=twin",
    "team=single",
    "problems.held_out_size=2",
    "rollout.iterations=2",
    "rollout.problems=2",
    "rollout.episodes_per_problem=2",
    "rollout.max_tokens=8",
    "engine.backend=transformers",
    "engine.max_model_length=4096",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twins_do_not_meet(
    store: Store,
    make_services: MakeServices,
    database_url: str,
    tiny_model: Path,
    tmp_path: Path,
    toy_config: TrainConfig,
) -> None:
    # One configuration, one folder, one second: nothing but their ids tells them apart.
    rollout = toy_config.rollout.model_copy(update={"iterations": 3, "episodes_per_problem": 4})
    config = toy_config.model_copy(update={"rollout": rollout})
    alone = play_here(make_services(config), config)
    twin = Victim(database_url, tiny_model, tmp_path / "checkpoints", config)
    processes = [twin.start(stdin=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert "ready\n" in process.stdout
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0

    runs = store.runs.list_runs()
    assert [run.status for run in runs] == [RunStatus.COMPLETED] * 3
    assert len({run.name for run in runs}) == 3
    first, second = (run for run in runs if run.id != alone)
    assert first.ended_at is not None
    assert second.ended_at is not None
    assert max(first.started_at, second.started_at) < min(first.ended_at, second.ended_at)
    for run in runs:
        assert weights(store, run.id) == weights(store, alone)
        assert store.runs.get_run(run.name).id == run.id


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_commands_share_a_home(open_folder: Path, tiny_model: Path) -> None:
    """Postgres, Prefect and MLflow of one home, started by the first that comes."""
    home = open_folder / "twins"
    servers = ("MAPPA_DATABASE_URL", "MLFLOW_TRACKING_URI", "PREFECT_API_URL")
    inherited = {name: value for name, value in os.environ.items() if name not in servers}
    command = [str(Path(sys.executable).with_name("mappa")), "train", f"model={tiny_model}", *SMALL]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=inherited | {"MAPPA_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    for together in (2, 1):
        for process in [start() for _ in range(together)]:
            printed, _ = process.communicate(timeout=300)
            assert process.returncode == 0, printed
    with opened_store(Settings(MAPPA_HOME=home)) as store:
        runs = store.runs.list_runs()
        assert len({run.name for run in runs}) == 3
        (weights_of_run,) = {tuple(weights(store, run.id)) for run in runs}
        assert len(weights_of_run) == 2
