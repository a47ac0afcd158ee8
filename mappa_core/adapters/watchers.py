"""Watchers that need no terminal: what happens, as log lines."""

import logging
from collections.abc import Mapping, Sequence

from mappa_core.domain.records import Episode, IterationFigures, Phase, Run, ScoreEntry

logger = logging.getLogger("mappa")


class LogWatcher:
    """Logs beginnings and results; episodes are counted by their iteration's figures."""

    def starting(self, message: str) -> None:
        """Log what is being started."""
        logger.info("starting %s", message)

    def waiting(self, message: str) -> None:
        """Log what the run waits for."""
        logger.warning("%s", message)

    def run(self, run: Run) -> None:
        """Log the run's name."""
        logger.info("run %s (%s), sandbox %s", run.name, run.id, run.sandbox_tier)

    def phase(self, phase: Phase, iteration: int, episodes: int) -> None:
        """Log a batch of episodes."""
        logger.info("%s %d: %d episodes", phase, iteration, episodes)

    def episode(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:  # noqa: ARG002
        """Log an episode that failed; the others are in the figures."""
        if episode.error is not None:
            logger.warning("episode %s failed: %s", episode.id, episode.error)

    def updated(self, agent: str, iteration: int, metrics: Mapping[str, float]) -> None:
        """Log an update."""
        seconds = metrics.get("seconds", 0.0)
        logger.info("%s updated in iteration %d, %.0f s", agent, iteration, seconds)

    def figures(self, figures: IterationFigures, seconds: float) -> None:
        """Log an iteration's result."""
        logger.info(
            "%s %d: %d of %d right, %.0f s",
            figures.phase,
            figures.iteration,
            figures.successes,
            figures.episodes,
            seconds,
        )
