"""A Learner whose updates are computed by DeepSpeed on ranks of their own.

update ─▶ JOB.json ─▶ torchrun: N ranks ─▶ checkpoint + JOB.answer.json ─▶ UpdateReport

Checkpoints are those of the torch learner, weights and moments by name, so that a run may go on
with another learner, another stage or another number of ranks.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from mappa_core.core.errors import DiskFull, LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.checkpoint_learner import CheckpointLearner, Learnt, Lesson
from mappa_core.train.learners.deepspeed import launch
from mappa_core.train.learners.deepspeed.jobs import Answer, Job, handed_out, read_answer


class DeepspeedLearner(CheckpointLearner):
    """Starts ranks for every call; all nodes share the checkpoints' directory."""

    def __init__(
        self,
        base_model: Path | str,
        checkpoints_directory: Path,
        config: LearnerConfig,
        *,
        threads: int | None = None,
    ) -> None:
        """Load nothing; `threads` of the CPU for each rank, None for an equal part of the cores."""
        super().__init__(base_model, checkpoints_directory, config)
        cores = len(os.sched_getaffinity(0))
        self._threads = threads or max(1, cores // config.deepspeed.ranks)

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of each action's tokens under `policy`; shapes (N, T)."""
        if not actions:
            return ()
        return self._answer(policy, actions=tuple(actions)).logprobs

    def _learn(self, lesson: Lesson) -> Learnt:
        learnt = self._answer(lesson.policy, lesson=lesson).learnt
        assert learnt is not None, "ranks that were given a lesson answer with what they learnt"
        return learnt

    def _answer(
        self,
        policy: PolicyVersion,
        *,
        lesson: Lesson | None = None,
        actions: tuple[ScoredAction, ...] = (),
    ) -> Answer:
        job = Job(
            base_model=str(self._base),
            policy=policy,
            learner=self._config,
            lesson=lesson,
            actions=actions,
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / "deepspeed.log"
        # Beside the checkpoints, because every node finds those.
        with handed_out(self._directory, job) as file:
            launch.run(self._config.deepspeed, file, log, self._threads)
            answer = read_answer(file)
        if answer is None:
            raise LearnerError(f"DeepSpeed's ranks ended without an answer: read {log}")
        if answer.error is not None:
            raise DiskFull(answer.error) if answer.disk_full else LearnerError(answer.error)
        return answer
