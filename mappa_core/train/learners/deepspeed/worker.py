"""Runs one rank: `torchrun ... -m mappa_core.train.learners.deepspeed.worker TASK.json`.

Every rank reads the same task and takes each n-th micro-batch; sums over ranks are those of one
process, because the weights of a minibatch's tokens are fixed before it is cut.
"""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, distributed

from mappa_core.core.errors import DiskFull, LearnerError, MappaError
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.models.device import resolve_device, resolve_dtype
from mappa_core.train import checkpoints
from mappa_core.train.batches import micro_batched
from mappa_core.train.clipped_objective import loss_of
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.learners import memory, model, optimizer
from mappa_core.train.learners.checkpoint_learner import UpdateJob, UpdateResult
from mappa_core.train.learners.deepspeed import zero
from mappa_core.train.learners.deepspeed.exchange import (
    RankReply,
    RankTask,
    read_task,
    write_reply,
)
from mappa_core.train.learners.deepspeed.launch import end_with_parent
from mappa_core.train.learners.self_check import choose_reading
from mappa_core.train.learners.steps import Rows, finite_step, optimizer_steps, read_rows
from mappa_core.train.metrics import StepTaken, Tally
from mappa_core.train.token_logprobs import TokenLogprobs

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine


T = TypeVar("T")


class Rank:
    """This process's part of one task."""

    def __init__(self, task: RankTask, file: Path) -> None:
        """Load the policy's weights and join the other ranks; the task lies in `file`."""
        self.file, self.learner, policy = file, task.learner, task.policy
        device = resolve_device(task.learner.device)
        zero.start_ranks(device)
        self.trainee = model.load(task.base_model, task.learner, fused=False)
        self.parameters = model.trained_parameters(self.trainee)
        self.reading = choose_reading(model.inner(self.trainee), task.learner)
        seed = task.update.seed if task.update else 0
        model.restore(self.trainee, task.base_model, policy, seed)
        before = model.tensors(self.trainee) if distributed.get_rank() == 0 else {}
        self.before = {name: tensor.clone() for name, tensor in before.items()}
        steps = task.update.total_steps if task.update else 1
        self.rate = optimizer.learning_rate(task.learner, policy.step, steps)
        dtype = resolve_dtype(task.learner.deepspeed.dtype, device)
        self.engine: DeepSpeedEngine = zero.open_engine(
            zero.Reader(self.trainee, self.reading),
            task.learner,
            self.rate,
            bfloat16=dtype is torch.bfloat16,
        )

    def logprobs(self, actions: Sequence[ScoredAction] | Sequence[TrainingSample]) -> Rows:
        """Read the log-probabilities of every action's tokens, on every rank; shapes (N, T)."""
        mine = read_rows(
            actions,
            self.reading.cut,
            lambda tree, temperature: cast(Tensor, self.engine(tree, temperature)[0]),
            lambda parts: [part for part, _ in _dealt(parts)],
        )
        found = {i: row for one in _gathered(mine) for i, row in one.items()}
        return tuple(found[i] for i in range(len(actions)))

    def update(self, job: UpdateJob) -> UpdateResult | None:
        """Compute the whole update; the first rank writes the checkpoint and has the result."""
        started = time.monotonic()
        # Read when they are needed: held in between they would take memory twice.
        zero.restore_moments(self.engine, self.parameters, optimizer.state_before(job.policy))
        with memory.measured(model.inner(self.trainee).device) as peak:
            # Each step is taken by `_step`: what is saved is decided by what the guard says of it.
            steps = optimizer_steps(job, self.learner, logprobs=self.logprobs, backward=self._step)
        metrics = steps.metrics(job.samples, time.monotonic() - started) | peak.metrics()
        metrics |= {"learning_rate": self.rate, "ranks": float(distributed.get_world_size())}
        metrics["read_padded"] = float(self.reading.way == "padded")
        saved = self._save(job, moved=bool(steps.taken) and steps.skipped is None)
        if saved is None:
            return None
        return UpdateResult(metrics=metrics, saved=saved, skipped=steps.skipped)

    def _step(self, minibatch: Sequence[TrainingSample], algorithm: AlgorithmConfig) -> StepTaken:
        parts = micro_batched(minibatch, algorithm, self.reading.cut)
        tally, ranks = Tally(), distributed.get_world_size()
        mine = _dealt(parts)
        for number, (batch, counts) in enumerate(mine):
            self.engine.set_gradient_accumulation_boundary(number == len(mine) - 1)
            logprobs, entropies = self.engine(batch.tree, batch.temperature)
            tokens = TokenLogprobs(logprobs=logprobs.float(), entropies=entropies)
            step = loss_of(batch, tokens, algorithm)
            # DeepSpeed takes the mean over the ranks, and these are shares of one sum.
            share = step.loss * ranks if counts else step.loss * 0.0
            self.engine.backward(share, scale_wrt_gas=False)
            if counts:
                tally.add(batch, step)
        self.engine.step()
        total = Tally()
        for one in _gathered(tally):
            total.merge(one)
        return finite_step(total, float(self.engine.get_global_grad_norm() or 0.0))

    def _save(self, job: UpdateJob, *, moved: bool) -> checkpoints.Saved | None:
        """Gather everywhere, write on the first rank."""
        weights = zero.weights(self.parameters) if moved else {}
        state = zero.moments(self.engine, self.parameters) if moved else {}
        if distributed.get_rank() != 0:
            return None
        if moved:
            names = model.file_names(self.trainee)
            self.before = {names[name]: tensor for name, tensor in weights.items()}
        else:
            state = optimizer.state_before(job.policy)
        # It is there until it has ended, or the update was taken up again.
        if not self.file.exists():
            raise LearnerError(f"the task {self.file} is gone: nothing was saved")
        return checkpoints.write(
            Path(job.directory),
            model.config(self.trainee, job.policy.base_model),
            self.before,
            state,
        )


def _dealt(parts: Sequence[T]) -> list[tuple[T, bool]]:
    """Pick this rank's parts, and whether each counts: all ranks must take equally many."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    chosen = [number * ranks + rank for number in range(math.ceil(len(parts) / ranks))]
    return [(parts[i] if i < len(parts) else parts[-1], i < len(parts)) for i in chosen]


def _gathered(mine: T) -> list[T]:
    """Give every rank what each of them has."""
    found = [mine] * distributed.get_world_size()
    distributed.all_gather_object(found, mine)
    return found


def reply_to(file: Path) -> RankReply:
    """Do the task in `file`; what fails outside is a reply, too."""
    try:
        with memory.gpu_failures_named():
            task = read_task(file)
            rank = Rank(task, file)
            if task.update is None:
                return RankReply(logprobs=rank.logprobs(task.actions))
            return RankReply(update=rank.update(task.update))
    except MappaError as error:
        return RankReply(error=str(error), disk_full=isinstance(error, DiskFull))


def main(file: Path) -> None:
    """Reply to the task in `file`."""
    reply = reply_to(file)
    if not distributed.is_initialized() or distributed.get_rank() == 0 or reply.error:
        write_reply(file, reply)
    if reply.error is not None:
        # The other ranks may wait for this one; the launcher ends them.
        sys.exit(1)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]))
