"""One rank: `torchrun ... -m mappa_core.train.learners.deepspeed.worker JOB.json`.

Every rank reads the same job and takes each n-th micro-batch; sums over ranks are those of one
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
from mappa_core.core.ids import derive_seed
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.models.device import resolve_device
from mappa_core.train import checkpoints
from mappa_core.train.batches import Batch, has_gradient, micro_batched
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.guard import out_of_band
from mappa_core.train.learners import gpu, memory, model, plan
from mappa_core.train.learners.checkpoint_learner import Learnt, Lesson
from mappa_core.train.learners.deepspeed import lifeline, zero
from mappa_core.train.learners.deepspeed.jobs import Answer, Job, read_job, wanted, write_answer
from mappa_core.train.learners.metrics import StepTaken, Tally, report
from mappa_core.train.learners.steps import loss_of
from mappa_core.train.prefix_tree import build, micro_batches
from mappa_core.train.token_logprobs import TokenLogprobs

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine


T = TypeVar("T")


class Rank:
    """This process's part of one job."""

    def __init__(self, job: Job, file: Path) -> None:
        """Load the policy's weights and join the other ranks; the job lies in `file`."""
        self.job, self.file, self.learner = job, file, job.learner
        device = resolve_device(job.learner.device)
        zero.start_ranks(device)
        self.trainee = model.load(job.base_model, job.learner, fused=False)
        self.parameters = model.trained_parameters(self.trainee)
        self.policy_directory = Path(job.policy.adapter_uri) if job.policy.adapter_uri else None
        if self.policy_directory is None:
            seed = derive_seed("lora", job.lesson.seed if job.lesson else 0, job.policy.agent)
            model.reset(self.trainee, job.base_model, seed)
        else:
            model.copy_tensors(self.trainee, checkpoints.read_weights(self.policy_directory))
        self.before = model.tensors(self.trainee) if distributed.get_rank() == 0 else {}
        self.before = {name: tensor.clone() for name, tensor in self.before.items()}
        chosen = job.learner.deepspeed.dtype
        self.engine: DeepSpeedEngine = zero.open_engine(
            self.trainee,
            job.learner,
            bfloat16=chosen == "bfloat16" or (chosen == "auto" and device == "cuda"),
        )

    def logprobs(
        self, actions: Sequence[ScoredAction] | Sequence[TrainingSample]
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of every action's tokens, on every rank."""
        prompts = [action.prompt_token_ids for action in actions]
        responses = [action.token_ids for action in actions]
        parts = micro_batches(prompts, responses, self.learner.micro_batch_tokens)
        mine: dict[int, tuple[float, ...]] = {}
        for part, counts in _dealt(parts):
            tree = build([prompts[i] for i in part], [responses[i] for i in part])
            with torch.no_grad():
                values = cast(Tensor, self.engine(tree)[0]).float().cpu()
            if counts:
                rows = values.split([len(responses[i]) for i in part])
                mine |= {i: tuple(row.tolist()) for i, row in zip(part, rows, strict=True)}
        everyones: list[dict[int, tuple[float, ...]]] = [{}] * distributed.get_world_size()
        distributed.all_gather_object(everyones, mine)
        found = {i: row for one in everyones for i, row in one.items()}
        return tuple(found[i] for i in range(len(actions)))

    def update(self, lesson: Lesson) -> Learnt | None:
        """The whole update; the first rank writes the checkpoint and says what came of it."""
        started = time.monotonic()
        zero.restore_moments(self.engine, self.parameters, self._moments_before())
        rate = plan.learning_rate(self.learner, lesson.policy.step, lesson.total_steps)
        zero.set_rate(self.engine, rate)
        with memory.measured(model.inner(self.trainee).device) as peak:
            taken, skipped = self._steps(lesson)
        seconds = time.monotonic() - started
        saved = self._save(lesson, moved=bool(taken) and skipped is None)
        if saved is None:
            return None
        metrics = {
            **report(lesson.samples, taken, seconds),
            **peak.metrics(),
            "learning_rate": rate,
            "skipped": float(skipped is not None),
            "ranks": float(distributed.get_world_size()),
        }
        return Learnt(metrics=metrics, saved=saved, skipped=skipped)

    def _steps(self, lesson: Lesson) -> tuple[list[StepTaken], str | None]:
        samples, algorithm = lesson.samples, lesson.algorithm
        if plan.needs_trainer_logprobs(self.learner, algorithm):
            samples = plan.with_trainer_logprobs(samples, self.logprobs(samples))
        taken: list[StepTaken] = []
        for minibatch in plan.minibatches(samples, self.learner, lesson.seed):
            if not any(has_gradient(sample, algorithm) for sample in minibatch):
                continue
            taken.append(self._step(minibatch, algorithm))
            # The step is taken already: what is saved is decided by the answer to this.
            reason = out_of_band(taken[-1].figures(), algorithm.guard)
            if reason is not None:
                return taken, reason
        return taken, None

    def _step(self, minibatch: Sequence[TrainingSample], algorithm: AlgorithmConfig) -> StepTaken:
        parts = micro_batched(minibatch, algorithm, self.learner.micro_batch_tokens)
        tally, ranks = Tally(), distributed.get_world_size()
        mine = _dealt(parts)
        for number, (batch, counts) in enumerate(mine):
            self.engine.set_gradient_accumulation_boundary(number == len(mine) - 1)
            step = loss_of(batch, self._read(batch), algorithm)
            # DeepSpeed takes the mean over the ranks, and these are shares of one sum.
            share = step.loss * ranks if counts else step.loss * 0.0
            self.engine.backward(share, scale_wrt_gas=False)
            if counts:
                tally.add(batch, step)
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm() or 0.0)
        tally = _over_ranks(tally)
        if not math.isfinite(tally.loss) or not math.isfinite(norm):
            raise LearnerError(
                f"loss {tally.loss} with gradient norm {norm}: nothing was saved; lower "
                "learner.learning_rate and go on from the last checkpoint"
            )
        return StepTaken(tally=tally, grad_norm=norm)

    def _read(self, batch: Batch) -> TokenLogprobs:
        logprobs, entropies = self.engine(batch.tree)
        return TokenLogprobs(logprobs=logprobs.float(), entropies=entropies)

    def _moments_before(self) -> dict[str, Tensor]:
        # Read when they are needed: held in between they would be there beside the optimiser's.
        before = self.policy_directory
        return {} if before is None else checkpoints.read_optimizer(before)

    def _save(self, lesson: Lesson, *, moved: bool) -> checkpoints.Saved | None:
        """Gather everywhere, write on the first rank."""
        weights = zero.weights(self.parameters) if moved else {}
        state = zero.moments(self.engine, self.parameters) if moved else {}
        if distributed.get_rank() != 0:
            return None
        if moved:
            names = model.file_names(self.trainee)
            self.before = {names[name]: tensor for name, tensor in weights.items()}
        else:
            state = self._moments_before()
        if not wanted(self.file):
            raise LearnerError(f"nobody waits for {self.file} any more: nothing was saved")
        return checkpoints.write(
            Path(lesson.directory),
            model.config(self.trainee, lesson.policy.base_model),
            self.before,
            state,
        )


def _dealt(parts: Sequence[T]) -> list[tuple[T, bool]]:
    """This rank's parts, and whether each counts: all ranks must take equally many turns."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    turns = math.ceil(len(parts) / ranks)
    chosen = [turn * ranks + rank for turn in range(turns)]
    return [(parts[i] if i < len(parts) else parts[-1], i < len(parts)) for i in chosen]


def _over_ranks(tally: Tally) -> Tally:
    everyones: list[Tally] = [tally] * distributed.get_world_size()
    distributed.all_gather_object(everyones, tally)
    total = Tally()
    for one in everyones:
        total.merge(one)
    return total


def answer(file: Path) -> Answer:
    """Do the job in `file`; what fails outside is an answer, too."""
    try:
        with gpu.failures_named():
            job = read_job(file)
            rank = Rank(job, file)
            if job.lesson is None:
                return Answer(logprobs=rank.logprobs(job.actions))
            return Answer(learnt=rank.update(job.lesson))
    except MappaError as error:
        return Answer(error=str(error), disk_full=isinstance(error, DiskFull))


def main(file: Path) -> None:
    """Answer the job in `file`."""
    found = answer(file)
    if not distributed.is_initialized() or distributed.get_rank() == 0 or found.error:
        write_answer(file, found)
    if found.error is not None:
        # The other ranks may wait for this one; the launcher ends them.
        sys.exit(1)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    if lifeline.FLAG in sys.argv:
        lifeline.hold()
    main(Path(sys.argv[1]))
