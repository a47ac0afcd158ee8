"""Does what all learners that keep checkpoints on disk have in common: all but the computing."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mappa_core.cluster.storage import Storage
from mappa_core.core.ids import content_id, policy_version_id
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import Checkpoint, TrainingSample, UpdateReport
from mappa_core.train.checkpoints import Saved
from mappa_core.train.config import AlgorithmConfig, LearnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateJob:
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
class UpdateResult:
    """What an update came to, its checkpoint written."""

    metrics: Mapping[str, float]
    saved: Saved
    skipped: str | None
    """Which band the update left, so that the weights stayed as they were; None where none."""


class CheckpointLearner(ABC):
    """Fulfils `Learner` for a class that reads log-probs and computes an update."""

    def __init__(
        self,
        base_model: Path | str,
        checkpoints_directory: Path,
        config: LearnerConfig,
        *,
        threads: int | None = None,
        storage: Storage | None = None,
    ) -> None:
        """Keep what it is to work with.

        Checkpoints go to folders run id / agent / step. `threads` are those of the CPU for each
        process that computes; None for all, shared equally. `storage` has them for other machines.
        """
        self._base = base_model
        self._directory = checkpoints_directory
        self._config = config
        self._threads = threads
        self._storage = storage

    @abstractmethod
    def _compute(self, job: UpdateJob) -> UpdateResult:
        """Compute an update and write its checkpoint.

        Where no sample has a gradient, or the guard does not take the update, the weights stay as
        they are, moments included.
        """

    def _share(self, storage: Storage, directory: Path) -> None:
        """Let other machines have the checkpoint in `directory`."""
        storage.upload(directory, directory)

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        """Update `policy` once, saved as the checkpoint of the next step."""
        started = time.monotonic()
        step = policy.step + 1
        directory = str(self._directory / str(policy.run_id) / policy.agent / str(step))
        result = self._compute(
            UpdateJob(
                policy=policy,
                samples=tuple(samples),
                algorithm=algorithm,
                total_steps=total_steps,
                seed=seed,
                directory=directory,
            )
        )
        if self._storage is not None:
            self._share(self._storage, Path(directory))
        identity = policy_version_id(policy.run_id, policy.agent, step)
        seconds = time.monotonic() - started
        return UpdateReport(
            metrics={**result.metrics, "seconds": seconds},
            checkpoint=Checkpoint(
                id=content_id("checkpoint", identity, result.saved.sha256),
                policy_version_id=identity,
                directory=directory,
                sha256=result.saved.sha256,
                size_bytes=result.saved.size_bytes,
            ),
            policy=replace(policy, id=identity, step=step, adapter_uri=directory),
            seconds=seconds,
            skipped=result.skipped,
        )
