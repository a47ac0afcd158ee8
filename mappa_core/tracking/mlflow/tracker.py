"""Runs in MLflow: one experiment per team, one MLflow run per MAPPA run."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.episodes import Episode, Phase
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.tracking.mlflow import traces
from mappa_core.tracking.mlflow.client import Mlflow, all_pages, boundary, is_server

if TYPE_CHECKING:
    from mlflow.entities import Trace
    from mlflow.store.entities import PagedList

T = TypeVar("T")

VALUE_CHARACTERS = 6000
"""MLflow refuses longer parameters; the whole configuration is in the store."""
PARAMETERS_PER_BATCH = 100
TRACES_PER_PAGE = 500
METRICS_PER_BATCH = 1000

ENDED = {
    RunStatus.COMPLETED: "FINISHED",
    RunStatus.INTERRUPTED: "KILLED",
    RunStatus.FAILED: "FAILED",
}


class MlflowTracker(Mlflow):
    """`Tracker` on an MLflow server, or straight on a database and a directory."""

    def __init__(
        self, tracking_uri: str, artifacts: Path, outage_retry: OutageRetry | None = None
    ) -> None:
        """Nothing is opened before first use.

        Args:
            tracking_uri: An MLflow server (`http...`) or a SQLAlchemy database URL.
            artifacts: Where files go without a server; a server has its own place.
            outage_retry: For when MLflow goes away; None has none.
        """
        super().__init__(tracking_uri, outage_retry)
        self._artifacts = artifacts
        self._experiments: dict[str, str] = {}

    def start(self, run: Run) -> str:
        """Open the run and log its parameters, or find it again; returns MLflow's run id."""
        with boundary(f"start run {run.name}"):
            experiment = self._experiment(run.team)
            mlflow_run_id = self._find(experiment, run) or self._create(experiment, run)
            self._log_parameters(mlflow_run_id, run.config)
            if run.prefect_flow_run_id is not None:
                self._client.set_tag(mlflow_run_id, "prefect.flow_run_id", run.prefect_flow_run_id)
            return mlflow_run_id

    def _experiment(self, team: str) -> str:
        name = f"mappa/{team}"
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        # Imported once the client is open: before, MLflow would not know that it is to be quiet.
        from mlflow.exceptions import MlflowException

        location = None if is_server(self._tracking_uri) else str(self._artifacts / team)
        try:
            return self._client.create_experiment(name, artifact_location=location)
        except MlflowException:
            # Another run may have been first.
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id

    def _find(self, experiment: str, run: Run) -> str | None:
        found = self._client.search_runs(
            [experiment], filter_string=f"tags.`mappa.run_id` = '{run.id}'", max_results=1
        )
        if not found:
            return None
        mlflow_run_id = found[0].info.run_id
        self._client.update_run(mlflow_run_id, status="RUNNING")
        return mlflow_run_id

    def _create(self, experiment: str, run: Run) -> str:
        created = self._client.create_run(
            experiment,
            start_time=int(run.started_at.timestamp() * 1000),
            run_name=run.name,
            tags={
                "mappa.run_id": str(run.id),
                "mappa.run_name": run.name,
                "mappa.team": run.team,
                "mappa.seed": str(run.seed),
                "mappa.code_version": run.code_version,
                "mappa.sandbox_tier": run.sandbox_tier,
                "mlflow.source.name": "mappa",
                "mlflow.source.type": "LOCAL",
            },
        )
        return created.info.run_id

    def _log_parameters(self, mlflow_run_id: str, config: Mapping[str, object]) -> None:
        from mlflow.entities import Param

        parameters = [Param(key, value) for key, value in flatten(config)]
        for batch in _batches(parameters, PARAMETERS_PER_BATCH):
            self._client.log_batch(mlflow_run_id, params=batch)

    def log(self, tracker_run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of one iteration; what is not a finite number is left out, never made up."""
        from mlflow.entities import Metric

        now_milliseconds = int(time.time() * 1000)
        finite = [
            Metric(name, value, now_milliseconds, step)
            for name, value in metrics.items()
            if math.isfinite(value)
        ]

        def log() -> None:
            for batch in _batches(finite, METRICS_PER_BATCH):
                self._client.log_batch(tracker_run_id, metrics=batch)

        self._call(f"log metrics of step {step}", log)

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """Show a finished episode as a trace, its scores as feedback; a repeat changes nothing.

        Raises:
            TrackerError: MLflow refused.
        """

        def trace() -> None:
            experiment = self._experiment_of(tracker_run_id)
            # Written directly: the fluent API's queues drop what they cannot take.
            from mlflow.tracing.client import TracingClient

            tracing = TracingClient(self._tracking_uri)
            tracing.start_trace(traces.trace_info(episode, entries, experiment, tracker_run_id))
            tracing.log_spans(experiment, list(traces.spans(episode)))

        self._call(f"trace episode {episode.id}", trace)

    def traced(self, tracker_run_id: str, phase: Phase, iteration: int) -> int:
        """Count the episodes of one iteration that are there as traces."""

        def page_after(token: str | None) -> "PagedList[Trace]":
            return self._client.search_traces(
                locations=[self._experiment_of(tracker_run_id)],
                filter_string=f"tags.`mappa.phase` = '{phase}' "
                f"AND tags.`mappa.iteration` = '{iteration}' "
                f"AND metadata.`mlflow.sourceRun` = '{tracker_run_id}'",
                max_results=TRACES_PER_PAGE,
                page_token=token,
                include_spans=False,
            )

        return self._call("count traces", lambda: sum(1 for _ in all_pages(page_after)))

    def _experiment_of(self, tracker_run_id: str) -> str:
        # Asked for every episode, and a run never moves.
        if tracker_run_id not in self._experiments:
            found = self._client.get_run(tracker_run_id).info.experiment_id
            self._experiments[tracker_run_id] = found
        return self._experiments[tracker_run_id]

    def attach(self, tracker_run_id: str, file: str, text: str) -> None:
        """Keep a text among the run's files, in the place of an earlier one of that name."""
        self._call(f"keep {file}", lambda: self._client.log_text(tracker_run_id, text, file))

    def place(self, tracker_run_id: str, file: str = "") -> str:
        """Where the run, or a file of it, is below the address of MLflow's pages."""
        experiment = self._call("find the run", lambda: self._experiment_of(tracker_run_id))
        files = f"/artifacts/{file}" if file else ""
        return f"#/experiments/{experiment}/runs/{tracker_run_id}{files}"

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        """Close the run."""
        ended = ENDED.get(status, "RUNNING")
        self._call("end the run", lambda: self._client.set_terminated(tracker_run_id, ended))


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def flatten(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and text values of a nested configuration, as `mappa train` takes them.

    Values are JSON but for text; one that MLflow would refuse ends in an ellipsis.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
            continue
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        # Cut to what MLflow takes as a parameter.
        long = len(text) > VALUE_CHARACTERS
        yield f"{prefix}{key}", text[: VALUE_CHARACTERS - 1] + "…" if long else text
