"""What `mappa doctor` says of where records are is where a run would keep them."""

import json
import socket
from pathlib import Path

import pytest

from mappa_core.core.settings import Settings
from mappa_core.store.opening import opened_databases
from tests.integration.platform.conftest import Mappa


def mlflow(mappa: Mappa) -> dict[str, str | bool]:
    code, said, _ = mappa("doctor", "--json")
    assert code == 0
    (finding,) = [each for each in json.loads(said) if each["name"] == "MLflow"]
    return finding


def tracking_uri() -> str:
    with opened_databases(Settings()) as databases:
        return databases.mlflow


def test_a_database_for_the_store_leaves_mlflow_in_a_file_and_that_is_said(
    mappa: Mappa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = mlflow(mappa)
    file = tmp_path / "home" / "mlflow" / "mlflow.db"
    assert (found["works"], found["found"]) == (True, str(file))
    assert "set MLFLOW_TRACKING_URI" in str(found["advice"])
    assert tracking_uri() == f"sqlite:///{file}"
    assert not file.exists()

    with socket.create_server(("127.0.0.1", 0)) as server:
        named = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", named)
        found = mlflow(mappa)
        assert (found["works"], found["found"]) == (True, "MLFLOW_TRACKING_URI")
        assert found["advice"] == ""
        assert tracking_uri() == named
    found = mlflow(mappa)
    assert not found["works"]
    assert "MLflow is not reachable at 127.0.0.1:" in str(found["found"])
