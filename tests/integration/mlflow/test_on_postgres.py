"""The same adapters on the embedded Postgres, where a run's records live by default."""

from pathlib import Path

from mappa_core.adapters.mlflow.client import open_client
from mappa_core.adapters.mlflow.registry import MlflowRegistry
from mappa_core.adapters.mlflow.tracker import MlflowTracker
from mappa_core.adapters.store.embedded import EmbeddedPostgres
from mappa_core.domain.records import Checkpoint, PolicyVersion, Run, RunStatus


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
