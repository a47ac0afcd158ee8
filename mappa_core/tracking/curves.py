"""A tracker whose metrics are also drawn elsewhere.

MLflow stays the tracker of record; what it refuses, nobody else is told.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from mappa_core.core.records.episodes import Episode, Phase
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.tracking.protocols import Curves, Tracker

Draw = Callable[[Run], Curves]
"""Opens the curves of a run; raises `TrackerError`."""


class WithCurves:
    """`ports.Tracker`: a tracker of record and any number of places for curves."""

    def __init__(self, tracker: Tracker, draw: Sequence[Draw]) -> None:
        """Nothing is written before a run starts.

        Args:
            tracker: The tracker of record.
            draw: What else is opened for each run.
        """
        self._tracker = tracker
        self._draw = draw
        self._curves: dict[str, tuple[Curves, ...]] = {}

    def start(self, run: Run) -> str:
        """Open the run everywhere, or find it again."""
        tracker_run_id = self._tracker.start(run)
        if tracker_run_id not in self._curves:
            self._curves[tracker_run_id] = tuple(draw(run) for draw in self._draw)
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

    def tag(self, tracker_run_id: str, tags: Mapping[str, str]) -> None:
        """Tags are the tracker's alone."""
        self._tracker.tag(tracker_run_id, tags)

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        """Close the run everywhere."""
        try:
            self._tracker.end(tracker_run_id, status)
        finally:
            for curves in self._curves.pop(tracker_run_id, ()):
                curves.close(status)
