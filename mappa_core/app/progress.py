"""Who is told how a run goes: the listener, and the one that writes log lines."""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from mappa_core.core.records.episodes import Episode, Phase
from mappa_core.core.records.runs import IterationFigures, Run
from mappa_core.core.records.scores import ScoreEntry

Log: TypeAlias = logging.Logger | logging.LoggerAdapter[logging.Logger]


class ProgressListener(Protocol):
    """Told what happens, to show it to a person; must never raise or block."""

    def on_starting(self, message: str) -> None:
        """Something that takes a while begins, e.g. `starting 3 engines`."""
        ...

    def on_waiting(self, message: str) -> None:
        """Something outside is away and the run waits for it, or it is back."""
        ...

    def on_notice(self, message: str) -> None:
        """Something that a person has to know of the run, once."""
        ...

    def on_phase_started(self, phase: Phase, iteration: int, episodes: int) -> None:
        """A batch of episodes begins."""
        ...

    def on_run_started(self, run: Run) -> None:
        """The run is in the store."""
        ...

    def on_episode_ended(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """An episode ended; its scores, none where none were asked for."""
        ...

    def on_update_ended(self, agent: str, iteration: int, metrics: Mapping[str, float]) -> None:
        """An agent's update ended."""
        ...

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        """An iteration's figures are in the store."""
        ...


class LogProgress:
    """Logs beginnings and results; episodes are counted by their iteration's figures."""

    def __init__(self, log: Log | None = None) -> None:
        """Write to `log`; None for the logger `mappa`."""
        self._log = log or logging.getLogger("mappa")

    def on_starting(self, message: str) -> None:
        """Log what is being started."""
        self._log.info("starting %s", message)

    def on_waiting(self, message: str) -> None:
        """Log what the run waits for."""
        self._log.warning("%s", message)

    def on_notice(self, message: str) -> None:
        """Log what is to be known of the run."""
        self._log.warning("%s", message)

    def on_run_started(self, run: Run) -> None:
        """Log the run's name."""
        self._log.info("run %s (%s), sandbox %s", run.name, run.id, run.sandbox_tier)

    def on_phase_started(self, phase: Phase, iteration: int, episodes: int) -> None:
        """Log a batch of episodes."""
        self._log.info("%s %d: %d episodes", phase, iteration, episodes)

    def on_episode_ended(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:  # noqa: ARG002
        """Log an episode that failed; the others are in the figures."""
        if episode.error is not None:
            self._log.warning("episode %s failed: %s", episode.id, episode.error)

    def on_update_ended(self, agent: str, iteration: int, metrics: Mapping[str, float]) -> None:
        """Log an update."""
        seconds = metrics.get("seconds", 0.0)
        self._log.info("%s updated in iteration %d, %.0f s", agent, iteration, seconds)

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        """Log an iteration's result."""
        self._log.info(
            "%s %d: %d of %d right, %.0f s",
            figures.phase,
            figures.iteration,
            figures.successes,
            figures.episodes,
            seconds,
        )
