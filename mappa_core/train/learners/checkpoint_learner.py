"""What learners that keep checkpoints on disk have in common: all but who computes."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.train.checkpoints import Saved
from mappa_core.train.config import AlgorithmConfig, LearnerConfig
from mappa_core.train.learners import plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One update to be computed."""

    policy: PolicyVersion
    samples: tuple[TrainingSample, ...]
    algorithm: AlgorithmConfig
    total_steps: int
    """Updates of the whole run, for the learning-rate schedule."""
    seed: int
    directory: str
    """Where the checkpoint goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What came of a lesson, with its checkpoint written."""

    metrics: Mapping[str, float]
    saved: Saved
    skipped: str | None
    """Which band the update left, so that the weights stayed as they were; None where none."""


class CheckpointLearner(ABC):
    """Fulfils `Learner` for whoever computes a lesson."""

    def __init__(
        self, base_model: Path | str, checkpoints_directory: Path, config: LearnerConfig
    ) -> None:
        """Describe it.

        Args:
            base_model: Directory or hub id of the base weights.
            checkpoints_directory: Where checkpoints go, in folders run id / agent / step.
            config: What is trained, and the optimiser.
        """
        self._base = base_model
        self._directory = checkpoints_directory
        self._config = config

    @abstractmethod
    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of each action's tokens under `policy`; shapes (N, T)."""

    @abstractmethod
    def _learn(self, lesson: Lesson) -> Learnt:
        """Compute an update and write its checkpoint.

        Where no sample has a gradient, or the guard does not take the update, the weights stay as
        they are, moments included.
        """

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        """One update of `policy`, saved as the checkpoint of the next step."""
        started = time.monotonic()
        directory = plan.directory_after(self._directory, policy)
        learnt = self._learn(
            Lesson(
                policy=policy,
                samples=tuple(samples),
                algorithm=algorithm,
                total_steps=total_steps,
                seed=seed,
                directory=str(directory),
            )
        )
        after, checkpoint = plan.after(policy, directory, learnt.saved)
        seconds = time.monotonic() - started
        return UpdateReport(
            metrics={**learnt.metrics, "seconds": seconds},
            checkpoint=checkpoint,
            policy=after,
            seconds=seconds,
            skipped=learnt.skipped,
        )
