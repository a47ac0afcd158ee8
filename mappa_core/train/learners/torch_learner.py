"""A Learner in this process: one model in memory, each agent's weights on disk.

No call depends on an earlier one: every update reads its agent's weights and optimiser state from
the checkpoint it starts from, so a resumed run computes what an undisturbed one would.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from peft import PeftModel

from mappa_core.core.errors import LearnerError
from mappa_core.core.ids import derive_seed
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train import checkpoints
from mappa_core.train.batches import has_gradient, micro_batched
from mappa_core.train.config import AlgorithmConfig, LearnerConfig
from mappa_core.train.guard import out_of_band
from mappa_core.train.learners import gpu, memory, model, optimizer, plan
from mappa_core.train.learners.checkpoint_learner import CheckpointLearner, Learnt, Lesson
from mappa_core.train.learners.metrics import StepTaken, Tally, report
from mappa_core.train.learners.steps import loss_of

P = ParamSpec("P")
T = TypeVar("T")


class TorchLearner(CheckpointLearner):
    """Updates one agent at a time."""

    def __init__(
        self,
        base_model: Path | str,
        checkpoints_directory: Path,
        config: LearnerConfig,
        *,
        threads: int | None = None,
    ) -> None:
        """Load the base model; `threads` of the CPU for torch in this process, None for all."""
        super().__init__(base_model, checkpoints_directory, config)
        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
        self._model = model.load(base_model, config, fused=True)
        self._parameters = model.trained_parameters(self._model)
        # There is one model in memory, so callers take turns; and in one thread, because the C
        # library keeps what each thread has freed for that thread: three updates in three threads
        # held 15 GB where one thread holds 5.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of each action's tokens under `policy`; shapes (N, T)."""
        return self._alone(self._logprobs, policy, actions)

    def _learn(self, lesson: Lesson) -> Learnt:
        return self._alone(self._update, lesson)

    def _alone(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the work when it is its turn, and leave no memory taken behind."""
        with gpu.failures_named():
            try:
                return self._worker.submit(work, *args, **kwargs).result()
            finally:
                memory.give_back()

    def _logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        if policy.adapter_uri is not None:
            self._restore_weights(Path(policy.adapter_uri))
            return self._read(actions)
        if isinstance(self._model, PeftModel):
            with self._model.disable_adapter():
                return self._read(actions)
        model.reset(self._model, self._base, 0)
        return self._read(actions)

    def _update(self, lesson: Lesson) -> Learnt:
        started = time.monotonic()
        policy = lesson.policy
        adamw = self._restore(policy, lesson.seed)
        rate = plan.learning_rate(self._config, policy.step, lesson.total_steps)
        for group in adamw.param_groups:
            group["lr"] = rate
        with memory.measured(model.inner(self._model).device) as peak:
            taken, skipped = self._steps(adamw, lesson)
        adamw.zero_grad(set_to_none=True)
        trained_seconds = time.monotonic() - started
        if skipped is not None:
            adamw = self._restore(policy, lesson.seed)
        saved = checkpoints.write(
            Path(lesson.directory),
            model.config(self._model, policy.base_model),
            model.tensors(self._model),
            optimizer.state_of(self._parameters, adamw),
        )
        metrics = {
            **report(lesson.samples, taken, trained_seconds),
            **peak.metrics(),
            "learning_rate": rate,
            "skipped": float(skipped is not None),
        }
        return Learnt(metrics=metrics, saved=saved, skipped=skipped)

    def _steps(
        self, adamw: torch.optim.AdamW, lesson: Lesson
    ) -> tuple[list[StepTaken], str | None]:
        """All optimizer steps, up to one that the guard does not take, with its reason."""
        samples, algorithm = lesson.samples, lesson.algorithm
        if plan.needs_trainer_logprobs(self._config, algorithm):
            samples = plan.with_trainer_logprobs(samples, self._read(samples))
        taken: list[StepTaken] = []
        for minibatch in plan.minibatches(samples, self._config, lesson.seed):
            if not any(has_gradient(sample, algorithm) for sample in minibatch):
                continue
            taken.append(self._backward(minibatch, algorithm))
            reason = out_of_band(taken[-1].figures(), algorithm.guard)
            if reason is not None:
                return taken, reason
            adamw.step()
        return taken, None

    def _backward(
        self, minibatch: Sequence[TrainingSample], algorithm: AlgorithmConfig
    ) -> StepTaken:
        """The minibatch's clipped gradient in the parameters' `.grad`."""
        for parameter in self._parameters.values():
            parameter.grad = None
        tally = Tally()
        for batch in micro_batched(minibatch, algorithm, self._config.micro_batch_tokens):
            part = loss_of(batch, model.read(self._model, batch.tree), algorithm)
            part.loss.backward()
            tally.add(batch, part)
        norm = float(
            torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.gradient_clip)
        )
        if not math.isfinite(tally.loss) or not math.isfinite(norm):
            raise LearnerError(
                f"loss {tally.loss} with gradient norm {norm}: nothing was saved; lower "
                "learner.learning_rate and go on from the last checkpoint"
            )
        return StepTaken(tally=tally, grad_norm=norm)

    def _read(
        self, actions: Sequence[ScoredAction] | Sequence[TrainingSample]
    ) -> tuple[tuple[float, ...], ...]:
        return model.read_all(self._model, actions, self._config.micro_batch_tokens)

    def _restore_weights(self, directory: Path) -> None:
        try:
            model.copy_tensors(self._model, checkpoints.read_weights(directory))
        except ValueError as error:
            raise LearnerError(f"checkpoint {directory} does not fit: {error}") from error

    def _restore(self, policy: PolicyVersion, seed: int) -> torch.optim.AdamW:
        """The policy's weights in the model, and its optimiser."""
        if policy.adapter_uri is None:
            model.reset(self._model, self._base, derive_seed("lora", seed, policy.agent))
            return optimizer.build(self._parameters, {}, self._config)
        self._restore_weights(Path(policy.adapter_uri))
        state = checkpoints.read_optimizer(Path(policy.adapter_uri))
        return optimizer.build(self._parameters, state, self._config)
