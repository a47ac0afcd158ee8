"""Where metrics go and models are registered."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from mappa_core.core.records.episodes import Episode, Phase, PolicyVersion
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.records.updates import Checkpoint, RegisteredVersion


class Tracker(Protocol):
    """Parameters and metrics of a run, as MLflow shows them. All methods raise `TrackerError`."""

    def start(self, run: Run) -> str:
        """Open the run and log its parameters, or find it again; returns the tracker's id."""
        ...

    def log(self, tracker_run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of one iteration."""
        ...

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """Show a finished episode with its scores; a repeat changes nothing."""
        ...

    def traced(self, tracker_run_id: str, phase: Phase, iteration: int) -> int:
        """How many episodes of one iteration are shown."""
        ...

    def attach(self, tracker_run_id: str, file: str, text: str) -> None:
        """Keep a text with the run, in the place of an earlier one of that name."""
        ...

    def place(self, tracker_run_id: str, file: str = "") -> str:
        """Where the run, or a file of it, is among the tracker's pages: the end of an address."""
        ...

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        """Close the run."""
        ...


class Curves(Protocol):
    """The metrics of one run, drawn beside the tracker of record. Methods raise `TrackerError`."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve; all values are finite."""
        ...

    def close(self, status: RunStatus) -> None:
        """The run has ended."""
        ...


class ModelRegistry(Protocol):
    """Checkpoints as versions of registered models `mappa-<team>-<agent>`.

    All methods raise `TrackerError`.
    """

    def register(
        self,
        name: str,
        policy: PolicyVersion,
        checkpoint: Checkpoint,
        *,
        tracker_run_id: str,
        tags: Mapping[str, str],
        alias: str,
    ) -> str:
        """Store the checkpoint's files as a new version and point `alias` at it.

        Repeating it for one checkpoint returns the version it has.
        """
        ...

    def models(self) -> tuple[str, ...]:
        """The names of all registered models, sorted."""
        ...

    def versions(self, name: str) -> tuple[RegisteredVersion, ...]:
        """A model's versions, oldest first; none where there is no such model."""
        ...

    def point(self, name: str, alias: str, version: str, tags: Mapping[str, str]) -> None:
        """Move `alias` to a version, newer or older, and set tags on it."""
        ...
