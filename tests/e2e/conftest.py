"""Whole flows in a Prefect test server, with services chosen by the test."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.settings import PREFECT_SERVER_ANALYTICS_ENABLED, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from mappa_cli.servers import RECORDER, environment
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services
from mappa_core.coach.protocols import Coach
from mappa_core.store.store import Store
from tests.e2e.toy import toy_services
from tests.tiny_model import save_tiny_model

MakeServices = Callable[..., Services]


@pytest.fixture(scope="package", autouse=True)
def prefect() -> Iterator[None]:
    # No longer than these tests: its clients' web sockets draw from `random` every 20 seconds, in a
    # thread, which hypothesis takes for a strategy that does.
    with (
        temporary_settings({PREFECT_SERVER_ANALYTICS_ENABLED: False}),
        environment(RECORDER),
        prefect_test_harness(server_startup_timeout=600),
    ):
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def toy_config() -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "name": "toy",
            "team": "monologue",
            "rollout": {
                "iterations": 12,
                "problems": 2,
                "episodes_per_problem": 12,
                "max_tokens": 1,
                # Not by how fast the machine is.
                "granularity": "episode",
            },
            "engine": {"backend": "transformers", "device": "cpu", "dtype": "float32"},
            "learner": {
                "device": "cpu",
                "dtype": "float32",
                "learning_rate": 1e-2,
                "lora": {"rank": 4, "alpha": 8},
            },
            # What these coaches like is nothing that an exam would pass.
            "coach": {"exam": "never"},
            "evaluation": {"temperature": 1.0, "bootstrap": 100},
        }
    )


@pytest.fixture
def make_services(
    store: Store, tiny_model: Path, tmp_path: Path
) -> Callable[[TrainConfig], Services]:
    def make(config: TrainConfig, coach: Coach | None = None) -> Services:
        return toy_services(config, store, tiny_model, tmp_path / "checkpoints", coach)

    return make


@pytest.fixture
def elsewhere(
    toy_config: TrainConfig,
    tiny_model: Path,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> TrainConfig:
    """An iteration whose update is computed by a worker with this store and these checkpoints."""
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path))
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    changes = {
        "model": str(tiny_model),
        "rollout": {**toy_config.rollout.model_dump(), "iterations": 1, "episodes_per_problem": 4},
        "learner": {**toy_config.learner.model_dump(), "deployment": "update/gpu"},
    }
    return TrainConfig.model_validate({**toy_config.model_dump(), **changes})


@pytest.fixture
def make_remote(make_services: MakeServices) -> MakeServices:
    """Services without a learner."""

    def make(config: TrainConfig) -> Services:
        return replace(make_services(config), learner=None)

    return make
