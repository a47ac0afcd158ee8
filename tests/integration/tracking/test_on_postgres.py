"""The same adapters on the embedded Postgres, where a run's records live by default."""

import subprocess
import sys
from pathlib import Path

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.updates import Checkpoint
from mappa_core.store.embedded import EmbeddedPostgres
from mappa_core.tracking.mlflow.client import open_client
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.conftest import execute

ROOT = Path(__file__).parents[3]
START = """
import sys
from pathlib import Path
from mlflow.tracking import MlflowClient
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.builders import make_run
print("ready", flush=True)
sys.stdin.readline()
MlflowTracker(sys.argv[1], Path(sys.argv[2])).start(make_run(sys.argv[3]))
"""


def test_a_run_and_its_checkpoint_are_found_again(
    postgres: EmbeddedPostgres,
    run: Run,
    policy: PolicyVersion,
    checkpoint: Checkpoint,
    artifacts: Path,
) -> None:
    tracking_uri = postgres.url("mlflow")
    tracker, registry = MlflowTracker(tracking_uri, artifacts), MlflowRegistry(tracking_uri)
    tracker_run_id = tracker.start(run)
    tracker.log(tracker_run_id, 1, {"solver/mean_score": 5.5})
    versions = [
        registry.register(
            "mappa-mathchat-solver",
            policy,
            checkpoint,
            tracker_run_id=tracker_run_id,
            tags={"mappa.iteration": "1"},
            alias="candidate",
        )
        for _ in range(2)
    ]
    tracker.end(tracker_run_id, RunStatus.COMPLETED)

    assert versions == ["1", "1"]
    client = open_client(tracking_uri)
    shown = client.get_run(tracker_run_id)
    assert shown.info.status == "FINISHED"
    assert shown.data.metrics == {"solver/mean_score": 5.5}
    version = client.get_model_version_by_alias("mappa-mathchat-solver", "candidate")
    assert version.run_id == tracker_run_id
    assert version.tags["mappa.checkpoint_id"] == str(checkpoint.id)


def test_runs_that_start_together_make_the_records_once(
    postgres: EmbeddedPostgres, artifacts: Path
) -> None:
    execute(postgres.url("postgres"), "CREATE DATABASE mlflow_together")
    tracking_uri = postgres.url("mlflow_together")
    words = [sys.executable, "-c", START, tracking_uri, str(artifacts)]
    starting = [
        subprocess.Popen(
            [*words, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "other", "third")
    ]
    for process in starting:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in starting:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    complaints = [process.communicate(timeout=120)[1] for process in starting]
    assert [process.returncode for process in starting] == [0, 0, 0], complaints
    client = open_client(tracking_uri)
    experiment = client.get_experiment_by_name("mappa/mathchat")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 3
