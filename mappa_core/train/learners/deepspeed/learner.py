"""Learns by DeepSpeed on ranks of their own.

update ─▶ task file ─▶ torchrun: N ranks ─▶ checkpoint + reply file ─▶ UpdateReport

Checkpoints are those of the torch learner, weights and moments by name, so that a run may go on
with another learner, another stage or another number of ranks.
"""

import os
from collections.abc import Sequence

from mappa_core.core.errors import DiskFull, LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.learners.checkpoint_learner import CheckpointLearner, UpdateJob, UpdateResult
from mappa_core.train.learners.deepspeed.exchange import (
    RankReply,
    RankTask,
    read_reply,
    written_task,
)
from mappa_core.train.learners.deepspeed.launch import run_ranks


class DeepspeedLearner(CheckpointLearner):
    """Starts ranks for every call, and loads nothing itself."""

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Read the log-probabilities of each action's tokens under `policy`; shapes (N, T)."""
        if not actions:
            return ()
        return self._reply(policy, actions=tuple(actions)).logprobs

    def _compute(self, job: UpdateJob) -> UpdateResult:
        result = self._reply(job.policy, update=job).update
        assert result is not None, "ranks that were given an update reply with its result"
        return result

    def _reply(
        self,
        policy: PolicyVersion,
        *,
        update: UpdateJob | None = None,
        actions: tuple[ScoredAction, ...] = (),
    ) -> RankReply:
        task = RankTask(
            base_model=str(self._base),
            policy=policy,
            learner=self._config,
            update=update,
            actions=actions,
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / "deepspeed.log"
        with written_task(self._directory, task) as file:
            cores, config = len(os.sched_getaffinity(0)), self._config.deepspeed
            run_ranks(config, file, log, self._threads or max(1, cores // config.ranks))
            reply = read_reply(file)
        if reply is None:
            raise LearnerError(f"DeepSpeed's ranks ended without an answer: read {log}")
        if reply.error is not None:
            raise DiskFull(reply.error) if reply.disk_full else LearnerError(reply.error)
        return reply
