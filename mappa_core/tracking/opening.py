"""Opens where metrics go: MLflow, the tracker of record, and the places of `tracking.also`."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Literal

from mappa_core.core.errors import ConfigError
from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.episodes import Episode, Phase
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.settings import Settings
from mappa_core.tracking.config import TrackingConfig
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from mappa_core.tracking.protocols import Curves, Tracker

OpenCurves = Callable[[Run], Curves]
"""Opens the curves of a run; raises `TrackerError`."""


class WithCurves:
    """A tracker of record whose metrics are also drawn elsewhere."""

    def __init__(self, tracker: Tracker, also: Sequence[OpenCurves]) -> None:
        """Write nothing before a run starts.

        Args:
            tracker: The tracker of record; what it refuses is told to no other.
            also: What else is opened for each run.
        """
        self._tracker = tracker
        self._also = also
        self._curves: dict[str, tuple[Curves, ...]] = {}

    def start(self, run: Run) -> str:
        """Open the run everywhere, or find it again."""
        tracker_run_id = self._tracker.start(run)
        if tracker_run_id not in self._curves:
            self._curves[tracker_run_id] = tuple(opened(run) for opened in self._also)
        return tracker_run_id

    def log(self, tracker_run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics everywhere; undefined ones nowhere."""
        self._tracker.log(tracker_run_id, step, metrics)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        for curves in self._curves.get(tracker_run_id, ()):
            curves.log(step, finite)

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """Traces are the tracker's alone."""
        self._tracker.trace(tracker_run_id, episode, entries)

    def traced(self, tracker_run_id: str, phase: Phase, iteration: int) -> int:
        """How many episodes the tracker shows."""
        return self._tracker.traced(tracker_run_id, phase, iteration)

    def attach(self, tracker_run_id: str, file: str, text: str) -> None:
        """Files are the tracker's alone."""
        self._tracker.attach(tracker_run_id, file, text)

    def place(self, tracker_run_id: str, file: str = "") -> str:
        """Where the run, or a file of it, is among the tracker's pages."""
        return self._tracker.place(tracker_run_id, file)

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        """Close the run everywhere."""
        try:
            self._tracker.end(tracker_run_id, status)
        finally:
            for curves in self._curves.pop(tracker_run_id, ()):
                curves.close(status)


def check_tracking(config: TrackingConfig, settings: Settings) -> None:
    """Refuse what could not be opened, before anything is written.

    Raises:
        ConfigError: The package or the key of Weights & Biases is missing.
    """
    if "wandb" not in config.also:
        return
    if find_spec("wandb") is None:
        raise ConfigError(
            "tracking.also=[wandb] needs the package wandb: pip install 'mappa[wandb]'"
        )
    if settings.wandb_api_key is None and settings.wandb_mode == "online":
        raise ConfigError(
            "tracking.also=[wandb] needs WANDB_API_KEY in the environment, or WANDB_MODE=offline"
        )


def open_tracker(
    tracking_uri: str,
    config: TrackingConfig,
    settings: Settings,
    outage_retry: OutageRetry | None = None,
) -> Tracker:
    """MLflow at `tracking_uri`, and the other places that the configuration names, each once.

    Raises:
        ConfigError: As `check_tracking`.
    """
    check_tracking(config, settings)
    tracker = MlflowTracker(tracking_uri, settings.mlflow / "artifacts", outage_retry)
    also = [_curves_in(place, settings) for place in dict.fromkeys(config.also)]
    return WithCurves(tracker, also) if also else tracker


def _curves_in(place: Literal["tensorboard", "wandb"], settings: Settings) -> OpenCurves:
    # The clients' libraries take a second each to import, so only on demand.
    if place == "wandb":
        from mappa_core.tracking.wandb import WandbCurves

        return partial(WandbCurves, settings.home / place, settings.wandb_project)
    from mappa_core.tracking.tensorboard import TensorBoardCurves

    return partial(TensorBoardCurves, settings.home / place)
