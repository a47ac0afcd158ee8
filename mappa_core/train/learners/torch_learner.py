"""Learns in this process: one model in memory, each agent's weights on disk.

No call depends on an earlier one: every update reads its agent's weights and optimiser state from
the checkpoint it starts from, so a resumed run computes what an undisturbed one would.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from peft import PeftModel
from torch import Tensor

from mappa_core.cluster.storage import Storage
from mappa_core.core import heap
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train import checkpoints
from mappa_core.train.batches import Batch, micro_batched
from mappa_core.train.clipped_objective import loss_of
from mappa_core.train.config import AlgorithmConfig, LearnerConfig
from mappa_core.train.learners import memory, model, optimizer
from mappa_core.train.learners.checkpoint_learner import CheckpointLearner, UpdateJob, UpdateResult
from mappa_core.train.learners.embedding import sum_gradients
from mappa_core.train.learners.fused_linear import gated_mlps
from mappa_core.train.learners.passes import Passes
from mappa_core.train.learners.rounded_linear import weights_rounded
from mappa_core.train.learners.self_check import choose_reading
from mappa_core.train.learners.steps import Rows, finite_step, optimizer_steps, read_rows
from mappa_core.train.metrics import StepTaken, Tally
from mappa_core.train.prefix_tree import PrefixTree
from mappa_core.train.shared_root import shared

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
        storage: Storage | None = None,
    ) -> None:
        """Load the base model; as `CheckpointLearner`."""
        super().__init__(
            base_model, checkpoints_directory, config, threads=threads, storage=storage
        )
        threads = threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(threads)
        heap.share_heap()
        self._model = model.load(base_model, config, fused=True)
        self._parameters = model.trained_parameters(self._model)
        reading = choose_reading(model.inner(self._model), config)
        self._rounded = model.layers_to_round(self._model, reading.products)
        self._gated = gated_mlps(self._model, lambda layer: layer in self._rounded)
        on_gpu = reading.base.device.type != "cpu"
        self.passes = Passes(
            self._parameters.values(),
            threads=0 if on_gpu or reading.turns_by_length else threads,
            budget_tokens=config.micro_batch_tokens,
        )
        """What computes an update's micro-batches."""
        self._embedding = None if on_gpu else sum_gradients(model.inner(self._model), self.passes)
        self._reading = replace(
            reading,
            head=replace(reading.head, gradient=self._embedding),
            at_once=self.passes.at_once,
            # Layers that are computed again on the way back would ask for their states again.
            shares_root=self.passes.share_tokens > 0
            and not config.gradient_checkpointing
            and reading.sees_all,
        )
        # There is one model in memory, so callers wait for each other; and in one thread, because
        # the C library keeps what each thread has freed for that thread: three updates in three
        # threads held 15 GB where one thread holds 5.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        memory.release()
        self._at_rest = self._most_kept = memory.resident()

    def logprobs(self, policy: PolicyVersion, actions: Sequence[ScoredAction]) -> Rows:
        """Read the log-probabilities of each action's tokens under `policy`; shapes (N, T)."""
        return self._in_worker(self._logprobs, policy, actions)

    def _compute(self, job: UpdateJob) -> UpdateResult:
        return self._in_worker(self._update, job)

    def _in_worker(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the work when earlier work is done, and leave no memory of a GPU taken behind.

        A CPU's stays with the process, for the next update: agents play beside updates, so that
        the run needs it all the same. Given back is what is more than ever before, which lies in
        pieces that the next large update could not use.
        """
        with memory.gpu_failures_named():
            try:
                return self._worker.submit(work, *args, **kwargs).result()
            finally:
                memory.release_gpu()
                if (kept := memory.resident()) > self._most_kept:
                    self._most_kept = kept
                    memory.release()

    def _logprobs(self, policy: PolicyVersion, actions: Sequence[ScoredAction]) -> Rows:
        if policy.adapter_uri is None and isinstance(self._model, PeftModel):
            with self._model.disable_adapter():
                return self._read(actions)
        model.restore(self._model, self._base, policy, 0)
        return self._read(actions)

    def _update(self, job: UpdateJob) -> UpdateResult:
        started = time.monotonic()
        model.restore(self._model, self._base, job.policy, job.seed)
        adamw: torch.optim.AdamW | None = None

        def step() -> None:
            nonlocal adamw
            adamw = adamw or self._optimizer(job)
            adamw.step()

        with memory.measured(model.inner(self._model).device, at_rest=self._at_rest) as peak:
            steps = optimizer_steps(
                job, self._config, logprobs=self._read, backward=self._backward, step=step
            )
        for parameter in self._parameters.values():
            parameter.grad = None
        metrics = steps.metrics(job.samples, time.monotonic() - started) | peak.metrics()
        metrics["learning_rate"] = self._rate(job)
        metrics["read_padded"] = float(self._reading.way == "padded")
        if steps.skipped is not None:
            model.restore(self._model, self._base, job.policy, job.seed)
        if adamw is None or steps.skipped is not None:
            adamw = self._optimizer(job)
        saved = checkpoints.write(
            Path(job.directory),
            model.config(self._model, job.policy.base_model),
            model.tensors(self._model),
            optimizer.state_of(self._parameters, adamw),
        )
        return UpdateResult(metrics=metrics, saved=saved, skipped=steps.skipped)

    def _backward(
        self, minibatch: Sequence[TrainingSample], algorithm: AlgorithmConfig
    ) -> StepTaken:
        """Leave the minibatch's clipped gradient in the parameters' `.grad`."""
        for parameter in self._parameters.values():
            parameter.grad = None
        if self._embedding is not None:
            self._embedding.begin()

        def one(batch: Batch) -> Tally:
            with shared(batch.root):
                tokens = self._reading.read(batch.tree, batch.temperature, batch.root)
                part = loss_of(batch, tokens, algorithm)
                part.loss.backward()
            computed = Tally()
            computed.add(batch, part)
            return computed

        largest = self.passes.share_tokens if self._reading.shares_root else 0
        batches = micro_batched(minibatch, algorithm, self._reading.cut, largest)
        tally = Tally()
        with weights_rounded(self._rounded, self._gated):
            for computed in self.passes.run(one, batches, lambda batch: batch.size):
                tally.merge(computed)
        if self._embedding is not None:
            self._embedding.finish()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.gradient_clip)
        return finite_step(tally, float(norm))

    def _read(self, actions: Sequence[ScoredAction] | Sequence[TrainingSample]) -> Rows:
        def read(tree: PrefixTree, temperature: float) -> Tensor:
            return self._reading.read(tree, temperature).logprobs

        rows = read_rows(actions, self._reading.cut, read)
        return tuple(rows[i] for i in range(len(actions)))

    def _optimizer(self, job: UpdateJob) -> torch.optim.AdamW:
        """Build the optimizer as the policy's checkpoint has it, at the update's rate.

        Its moments are twice as large as what is trained: those of whole weights get the memory of
        the activations, which have gone.
        """
        if self._config.weights == "full":
            memory.release()
        state = optimizer.state_before(job.policy)
        return optimizer.build(self._parameters, state, self._config, self._rate(job))

    def _rate(self, job: UpdateJob) -> float:
        return optimizer.learning_rate(self._config, job.policy.step, job.total_steps)
