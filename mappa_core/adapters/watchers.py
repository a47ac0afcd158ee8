"""Watchers that need no terminal: what happens, as log lines."""

import logging
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mappa_core.domain.records import Episode, IterationFigures, Phase, Run, ScoreEntry

Log: TypeAlias = logging.Logger | logging.LoggerAdapter[logging.Logger]


class LogWatcher:
    """Logs beginnings and results; episodes are counted by their iteration's figures."""

    def __init__(self, log: Log | None = None) -> None:
        """Write to `log`; None for the logger `mappa`."""
        self._log = log or logging.getLogger("mappa")

    def starting(self, message: str) -> None:
        """Log what is being started."""
        self._log.info("starting %s", message)

    def waiting(self, message: str) -> None:
        """Log what the run waits for."""
        self._log.warning("%s", message)

    def run(self, run: Run) -> None:
        """Log the run's name."""
        self._log.info("run %s (%s), sandbox %s", run.name, run.id, run.sandbox_tier)

    def phase(self, phase: Phase, iteration: int, episodes: int) -> None:
        """Log a batch of episodes."""
        self._log.info("%s %d: %d episodes", phase, iteration, episodes)

    def episode(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:  # noqa: ARG002
        """Log an episode that failed; the others are in the figures."""
        if episode.error is not None:
            self._log.warning("episode %s failed: %s", episode.id, episode.error)

    def updated(self, agent: str, iteration: int, metrics: Mapping[str, float]) -> None:
        """Log an update."""
        seconds = metrics.get("seconds", 0.0)
        self._log.info("%s updated in iteration %d, %.0f s", agent, iteration, seconds)

    def figures(self, figures: IterationFigures, seconds: float) -> None:
        """Log an iteration's result."""
        self._log.info(
            "%s %d: %d of %d right, %.0f s",
            figures.phase,
            figures.iteration,
            figures.successes,
            figures.episodes,
            seconds,
        )
