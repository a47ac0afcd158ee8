"""A Learner whose updates are computed by DeepSpeed on ranks of their own.

update ─▶ JOB.json ─▶ torchrun: N ranks ─▶ checkpoint + JOB.answer.json ─▶ UpdateReport

Checkpoints are those of the torch learner, weights and moments by name, so that a run may go on
with another learner, another stage or another number of ranks.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mappa_core.adapters.deepspeed_learner import launch
from mappa_core.adapters.deepspeed_learner.jobs import Answer, Job, read_answer, write_job
from mappa_core.adapters.training import checkpoints, plan
from mappa_core.adapters.training.checkpoints import Saved
from mappa_core.config import AlgorithmConfig, LearnerConfig
from mappa_core.domain.errors import DiskFull, LearnerError
from mappa_core.domain.records import (
    Checkpoint,
    PolicyVersion,
    ScoredAction,
    TrainingSample,
    UpdateReport,
)


class DeepspeedLearner:
    """Starts ranks for every call; fulfils `ports.Learner`."""

    def __init__(
        self,
        base_model: Path | str,
        checkpoints_directory: Path,
        config: LearnerConfig,
        *,
        threads: int | None = None,
    ) -> None:
        """Nothing is loaded here.

        Args:
            base_model: Directory or hub id of the base weights.
            checkpoints_directory: Where checkpoints go; shared by all nodes.
            config: What is trained, and how it is spread.
            threads: CPU threads of each rank; None for an equal part of the cores.
        """
        self._base = str(base_model)
        self._directory = checkpoints_directory
        self._config = config
        cores = len(os.sched_getaffinity(0))
        self._threads = threads or max(1, cores // config.deepspeed.ranks)

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of each action's tokens under `policy`; shapes (N, T)."""
        if not actions:
            return ()
        job = Job(
            base_model=self._base, policy=policy, learner=self._config, actions=tuple(actions)
        )
        return self._answer(job).logprobs

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
        answer = self._answer(
            Job(
                base_model=self._base,
                policy=policy,
                learner=self._config,
                samples=tuple(samples),
                algorithm=algorithm,
                directory=str(directory),
                total_steps=total_steps,
                seed=seed,
            )
        )
        saved = Saved(sha256=answer.sha256, size_bytes=answer.size_bytes)
        after, checkpoint = plan.after(policy, directory, saved)
        seconds = time.monotonic() - started
        return UpdateReport(
            metrics={**answer.metrics, "seconds": seconds},
            checkpoint=checkpoint,
            policy=after,
            seconds=seconds,
            skipped=answer.skipped,
        )

    def retire(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint's files."""
        checkpoints.remove(Path(checkpoint.directory))

    def _answer(self, job: Job) -> Answer:
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / "deepspeed.log"
        # Beside the checkpoints, because every node finds those.
        with tempfile.TemporaryDirectory(prefix=".job-", dir=self._directory) as scratch:
            file = Path(scratch) / "job.json"
            write_job(file, job)
            launch.run(self._config.deepspeed, file, log, self._threads)
            answer = read_answer(file)
        if answer is None:
            raise LearnerError(f"DeepSpeed's ranks ended without an answer: read {log}")
        if answer.error is not None:
            raise DiskFull(answer.error) if answer.disk_full else LearnerError(answer.error)
        return answer
