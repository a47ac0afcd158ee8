"""Defines what learns from scored actions."""

from collections.abc import Sequence
from typing import Protocol

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.train.config import AlgorithmConfig


class Learner(Protocol):
    """Updates one agent's weights."""

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Read the log-probabilities of each action's tokens under `policy`; shapes (N, T).

        Raises:
            LearnerError: The weights cannot be loaded or do not match their hash.
        """
        ...

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        """Update `policy` once on `samples`, saved as a checkpoint of its own.

        Optimiser state travels in the checkpoint, so a killed run goes on as if undisturbed. The
        samples are an agent's scored actions of one iteration; `total_steps` are the updates of the
        whole run, for the learning-rate schedule; `seed` orders the minibatches.

        Raises:
            LearnerError: The loss is not finite, or the weights cannot be read.
            DiskFull: The checkpoint does not fit; nothing half-written is left.
        """
        ...
