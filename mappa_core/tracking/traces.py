"""Episodes as traces in the tracker: which are shown, and whether all of those arrived."""

from collections.abc import Sequence
from dataclasses import dataclass

from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.tracking.protocols import Tracker


def is_traced(episode: Episode, share: float) -> bool:
    """Whether an episode is among the `share` that is shown; the same in every process."""
    return ids.derive_seed("trace", episode.id) < share * ids.SEEDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Shows a share of one run's episodes. Methods raise `TrackerError`."""

    tracker: Tracker
    tracker_run_id: str
    share: float
    """In [0, 1]."""

    def has(self, episode: Episode) -> bool:
        """Tell whether an episode is one of the share."""
        return is_traced(episode, self.share)

    def show(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """Show a finished episode and its scores, where it is one of the share."""
        if self.has(episode):
            self.tracker.trace(self.tracker_run_id, episode, entries)

    def check(self, episodes: Sequence[Episode]) -> str | None:
        """Count the traces of one iteration and log how many are missing; returns it in words.

        Args:
            episodes: All of the iteration, at least one.
        """
        phase, iteration = episodes[0].phase, episodes[0].iteration
        expected = sum(self.has(episode) for episode in episodes)
        shown = self.tracker.traced(self.tracker_run_id, phase, iteration)
        self.tracker.log(
            self.tracker_run_id,
            iteration,
            {f"{phase}/traces": float(shown), f"{phase}/traces_missing": float(expected - shown)},
        )
        if shown >= expected:
            return None
        return (
            f"MLflow shows {shown} of {expected} traces of {phase} {iteration}; "
            "the store has all of them"
        )
