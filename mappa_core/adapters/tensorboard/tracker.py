"""Metrics as TensorBoard event files beside MLflow: `tensorboard --logdir MAPPA_HOME/tensorboard`.

    <folder>/<run name>/events.out.tfevents...   scalars by step, the configuration as text

MLflow stays the tracker of record; what it refuses, nobody else is told.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.domain.errors import TrackerError
from mappa_core.domain.records import Episode, Phase, Run, RunStatus, ScoreEntry
from mappa_core.ports import Tracker

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class WithTensorBoard:
    """`ports.Tracker`: another tracker, whose metrics also go to event files."""

    def __init__(self, tracker: Tracker, folder: Path) -> None:
        """Nothing is written before a run starts.

        Args:
            tracker: The tracker of record.
            folder: Where each run gets a folder.
        """
        self._tracker = tracker
        self._folder = folder
        self._writers: dict[str, SummaryWriter] = {}

    def start(self, run: Run) -> str:
        """Open the run in both; a resumed run goes on in the same folder."""
        from tensorboardX import SummaryWriter

        tracker_run_id = self._tracker.start(run)
        if tracker_run_id not in self._writers:
            folder = self._folder / run.name
            # Files are named by the second: without a number, a quick resume would truncate one.
            number = len(list(folder.glob("events.*")))
            try:
                writer = SummaryWriter(str(folder), filename_suffix=f".{number}")
            except OSError as error:
                raise TrackerError(f"TensorBoard's files cannot go to {folder}: {error}") from error
            writer.add_text("config", f"```\n{json.dumps(dict(run.config), indent=2)}\n```", 0)
            self._writers[tracker_run_id] = writer
        return tracker_run_id

    def log(self, tracker_run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics in both; undefined ones in neither."""
        self._tracker.log(tracker_run_id, step, metrics)
        writer = self._writers.get(tracker_run_id)
        if writer is None:
            return
        for name, value in metrics.items():
            if math.isfinite(value):
                writer.add_scalar(name, value, step)
        writer.flush()

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """Traces are the other tracker's."""
        self._tracker.trace(tracker_run_id, episode, entries)

    def traced(self, tracker_run_id: str, phase: Phase, iteration: int) -> int:
        """How many episodes the other tracker shows."""
        return self._tracker.traced(tracker_run_id, phase, iteration)

    def tag(self, tracker_run_id: str, tags: Mapping[str, str]) -> None:
        """Tags are the other tracker's."""
        self._tracker.tag(tracker_run_id, tags)

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        """Close the run in both."""
        self._tracker.end(tracker_run_id, status)
        writer = self._writers.pop(tracker_run_id, None)
        if writer is not None:
            writer.close()
