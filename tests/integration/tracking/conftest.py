"""MLflow on a fresh database, and a run to tell it about."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.core.records.updates import Checkpoint
from mappa_core.tracking.mlflow.client import open_client
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.adapter_files import write_adapter
from tests.builders import make_policy, make_run


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's migrations take a second or two: run once, copied for each test."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    open_client(f"sqlite:///{path}")
    return path


@pytest.fixture
def tracking_uri(tmp_path: Path, migrated_database: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path)}"


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def tracker(tracking_uri: str, artifacts: Path) -> MlflowTracker:
    return MlflowTracker(tracking_uri, artifacts)


@pytest.fixture
def registry(tracking_uri: str) -> MlflowRegistry:
    return MlflowRegistry(tracking_uri)


@pytest.fixture
def run() -> Run:
    return replace(
        make_run(),
        config={
            "rollout": {"max_tokens": 96, "temperature": 1.0},
            "problems": {"levels": [1, 2]},
            "model": "smollm2-135m-instruct",
            "prompt": "x" * 7000,
        },
        prefect_flow_run_id="0c5f7c1e-0000-4000-8000-000000000001",
    )


@pytest.fixture
def policy(run: Run) -> PolicyVersion:
    return make_policy(run, "solver", 1)


@pytest.fixture
def checkpoint(tmp_path: Path, policy: PolicyVersion) -> Checkpoint:
    return write_adapter(tmp_path / "checkpoints", policy)
