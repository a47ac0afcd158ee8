"""Runs, parameters and metrics as MLflow shows them."""

import math
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from mappa_core.core.errors import ConfigError, DiskFull, TrackerError, TrackerUnreachable
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.tracking.mlflow.client import boundary, open_client
from mappa_core.tracking.mlflow.tracker import MlflowTracker, flatten

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


@pytest.fixture
def client(tracking_uri: str) -> "MlflowClient":
    return open_client(tracking_uri)


def test_a_run_shows_its_parameters_and_where_it_came_from(
    tracker: MlflowTracker, client: "MlflowClient", run: Run, artifacts: Path
) -> None:
    shown = client.get_run(tracker.start(run))

    assert shown.info.run_name == run.name
    assert shown.info.start_time == int(run.started_at.timestamp() * 1000)
    assert shown.data.params["rollout.max_tokens"] == "96"
    assert shown.data.params["problems.levels"] == "[1, 2]"
    assert shown.data.params["model"] == "smollm2-135m-instruct"
    assert shown.data.params["prompt"] == "x" * 5999 + "…"
    assert shown.data.tags["mappa.run_id"] == str(run.id)
    assert shown.data.tags["mappa.code_version"] == run.code_version
    assert shown.data.tags["prefect.flow_run_id"] == run.prefect_flow_run_id
    experiment = client.get_experiment(shown.info.experiment_id)
    assert experiment.name == "mappa/mathchat"
    assert experiment.artifact_location == str(artifacts / "mathchat")


def test_starting_again_finds_the_run_and_reopens_it(
    tracker: MlflowTracker, client: "MlflowClient", run: Run
) -> None:
    first = tracker.start(run)
    tracker.end(first, RunStatus.INTERRUPTED)
    assert client.get_run(first).info.status == "KILLED"

    assert tracker.start(run) == first
    assert client.get_run(first).info.status == "RUNNING"
    tracker.end(first, RunStatus.COMPLETED)
    assert client.get_run(first).info.status == "FINISHED"


def test_a_configuration_larger_than_one_batch_is_logged_whole(
    tracker: MlflowTracker, client: "MlflowClient", run: Run
) -> None:
    wide = replace(run, config={f"key_{index}": index for index in range(250)})
    assert len(client.get_run(tracker.start(wide)).data.params) == 250


def test_metrics_land_at_their_step_and_numbers_that_are_none_are_left_out(
    tracker: MlflowTracker, client: "MlflowClient", run: Run
) -> None:
    mlflow_run = tracker.start(run)
    tracker.log(mlflow_run, 0, {"solver/mean_score": 4.0})
    tracker.log(mlflow_run, 1, {"solver/mean_score": 5.5, "kl_base": math.nan, "loss": math.inf})

    history = client.get_metric_history(mlflow_run, "solver/mean_score")
    assert [(point.step, point.value) for point in history] == [(0, 4.0), (1, 5.5)]
    assert set(client.get_run(mlflow_run).data.metrics) == {"solver/mean_score"}


def test_mlflow_says_nothing_on_the_terminal(
    tracker: MlflowTracker, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    mlflow_run = tracker.start(run)
    tracker.log(mlflow_run, 1, {"loss": 0.5})
    tracker.end(mlflow_run, RunStatus.COMPLETED)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg"])
def test_a_server_that_is_not_there_is_one_line_within_seconds(
    scheme: str, run: Run, tmp_path: Path
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, never listening: every connection is refused
        port = held.getsockname()[1]
        tracker = MlflowTracker(f"{scheme}://127.0.0.1:{port}", tmp_path)
        began = time.monotonic()
        with pytest.raises(TrackerError, match=rf"not reachable at 127\.0\.0\.1:{port}") as raised:
            tracker.start(run)
    assert time.monotonic() - began < 5
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:70000",
        "http://localhost:abc",
        "http://[::1/x",
        "postgresql://user@h1:5432,h2:5433/mlflow",
        "postgresql://user:sec/ret@host/mlflow",
    ],
)
def test_what_is_no_address_is_refused_in_one_line(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"^MLFLOW_TRACKING_URI names no host") as raised:
        open_client(uri)
    assert "sec" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_run_is_a_tracker_error(tracker: MlflowTracker) -> None:
    with pytest.raises(TrackerError, match=r"could not log metrics of step 3: .*not found"):
        tracker.log("0" * 32, 3, {"loss": 0.5})


def test_a_full_disk_has_its_own_error() -> None:
    with pytest.raises(DiskFull, match="make room"), boundary("register"):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "failure", [requests.ConnectionError("refused"), ConnectionResetError("hung up")]
)
def test_a_server_that_hangs_up_may_come_back(failure: OSError) -> None:
    with pytest.raises(TrackerUnreachable, match="not log metrics"), boundary("log metrics"):
        raise failure


def test_our_own_mistakes_are_not_blamed_on_mlflow() -> None:
    with pytest.raises(ZeroDivisionError), boundary("divide"):
        _ = 1 / 0


def test_flattened_keys_are_those_of_an_override() -> None:
    config = {"a": {"b": {"c": 1}, "d": None}, "e": "text", "f": [1.5, "x"]}
    assert dict(flatten(config)) == {"a.b.c": "1", "a.d": "null", "e": "text", "f": '[1.5, "x"]'}


@pytest.mark.parametrize("before", ["", "import mlflow"])
def test_a_first_run_prints_nothing_of_mlflow(tmp_path: Path, before: str) -> None:
    started = (
        f"{before}\n"
        + """
import sys
from pathlib import Path
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.builders import make_run
MlflowTracker(f"sqlite:///{sys.argv[1]}/mlflow.db", Path(sys.argv[1])).start(make_run("first"))
"""
    )
    ran = subprocess.run(
        [sys.executable, "-c", started, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
