"""A Learner in this process: one base model in memory, each agent's LoRA weights on disk.

No call depends on an earlier one: every update reads its agent's adapter and optimiser state from
the checkpoint it starts from, so a resumed run computes what an undisturbed one would.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from mappa_core.adapters.torch_learner import checkpoints, memory, model, optimizer, steps
from mappa_core.adapters.torch_learner.metrics import StepTaken, report
from mappa_core.config import AlgorithmConfig, LearnerConfig
from mappa_core.domain.errors import LearnerError
from mappa_core.domain.ids import content_id, derive_seed, policy_version_id
from mappa_core.domain.records import (
    Checkpoint,
    PolicyVersion,
    ScoredAction,
    TrainingSample,
    UpdateReport,
)
from mappa_core.learning.batches import has_gradient
from mappa_core.learning.prefix_tree import build, micro_batches
from mappa_core.learning.schedule import cosine


class TorchLearner:
    """Updates one agent at a time; fulfils `ports.Learner`."""

    def __init__(
        self,
        base_model: Path | str,
        checkpoints_directory: Path,
        config: LearnerConfig,
        *,
        threads: int | None = None,
    ) -> None:
        """Load the base model.

        Args:
            base_model: Directory or hub id of the frozen weights.
            checkpoints_directory: Where checkpoints go, in folders run id / agent / step.
            config: Adapter shape and optimiser.
            threads: CPU threads of torch in this process; None for all cores it may use.
        """
        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
        self._directory = checkpoints_directory
        self._config = config
        self._model = model.load(base_model, config.lora, config.device)
        self._parameters = model.adapter_parameters(self._model)
        # There is one model in memory, so callers take turns; and in one thread, because the C
        # library keeps what each thread has freed for that thread: three updates in three threads
        # held 15 GB where one thread holds 5.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of each action's tokens under `policy`; shapes (N, T)."""
        return self._worker.submit(self._logprobs, policy, actions).result()

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        """One update of `policy`, saved as the checkpoint of the next step.

        Where no sample has a gradient the weights stay as they are, moments included.
        """
        update = self._worker.submit(
            self._update, policy, samples, algorithm, total_steps=total_steps, seed=seed
        )
        try:
            return update.result()
        finally:
            memory.give_back()

    def _logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        with torch.no_grad():
            if policy.adapter_uri is None:
                with self._model.disable_adapter():
                    return self._read(actions)
            self._restore_adapter(Path(policy.adapter_uri))
            return self._read(actions)

    def _update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        started = time.monotonic()
        adamw = self._restore(policy, seed)
        rate = self._learning_rate(policy.step, total_steps)
        for group in adamw.param_groups:
            group["lr"] = rate
        taken = [
            self._step(adamw, minibatch, algorithm)
            for minibatch in self._minibatches(samples, seed)
            if any(has_gradient(sample, algorithm) for sample in minibatch)
        ]
        trained_seconds = time.monotonic() - started
        after, checkpoint = self._save(policy, adamw)
        seconds = time.monotonic() - started
        return UpdateReport(
            metrics={
                **report(samples, taken, trained_seconds),
                "learning_rate": rate,
                "seconds": seconds,
            },
            checkpoint=checkpoint,
            policy=after,
            seconds=seconds,
        )

    def _read(self, actions: Sequence[ScoredAction]) -> tuple[tuple[float, ...], ...]:
        prompts = [action.prompt_token_ids for action in actions]
        responses = [action.token_ids for action in actions]
        rows: list[tuple[float, ...]] = [()] * len(actions)
        for part in micro_batches(prompts, responses, self._config.micro_batch_tokens):
            tree = build([prompts[i] for i in part], [responses[i] for i in part])
            values = model.read(self._model, tree).logprobs.cpu()
            for i, row in zip(part, values.split([len(responses[i]) for i in part]), strict=True):
                rows[i] = tuple(row.tolist())
        return tuple(rows)

    def _restore_adapter(self, directory: Path) -> None:
        try:
            model.copy_adapter(self._model, checkpoints.read_adapter(directory))
        except ValueError as error:
            raise LearnerError(f"checkpoint {directory} does not fit: {error}") from error

    def _restore(self, policy: PolicyVersion, seed: int) -> torch.optim.AdamW:
        """The policy's weights in the model, and its optimiser."""
        if policy.adapter_uri is None:
            model.reset_adapter(self._model, derive_seed("lora", seed, policy.agent))
            return optimizer.build(self._parameters, {}, self._config)
        self._restore_adapter(Path(policy.adapter_uri))
        state = checkpoints.read_optimizer(Path(policy.adapter_uri))
        return optimizer.build(self._parameters, state, self._config)

    def _learning_rate(self, step: int, total_steps: int) -> float:
        return cosine(
            step,
            total_steps,
            peak=self._config.learning_rate,
            warmup_fraction=self._config.warmup_fraction,
            final_fraction=self._config.final_fraction,
        )

    def _minibatches(
        self, samples: Sequence[TrainingSample], seed: int
    ) -> Iterator[list[TrainingSample]]:
        """The samples of each optimizer step, epoch after epoch, in an order of the seed's."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self._config.epochs):
            order = torch.randperm(len(samples), generator=generator)
            for part in order.tensor_split(self._config.minibatches):
                yield [samples[i] for i in part.tolist()]

    def _step(
        self,
        adamw: torch.optim.AdamW,
        minibatch: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
    ) -> StepTaken:
        adamw.zero_grad()
        tally = steps.backward(self._model, minibatch, algorithm, self._config.micro_batch_tokens)
        norm = float(
            torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.gradient_clip)
        )
        if not math.isfinite(tally.loss) or not math.isfinite(norm):
            raise LearnerError(
                f"loss {tally.loss} with gradient norm {norm}: nothing was saved; lower "
                "learner.learning_rate and go on from the last checkpoint"
            )
        adamw.step()
        return StepTaken(tally=tally, grad_norm=norm)

    def _save(
        self, policy: PolicyVersion, adamw: torch.optim.AdamW
    ) -> tuple[PolicyVersion, Checkpoint]:
        step = policy.step + 1
        directory = self._directory / str(policy.run_id) / policy.agent / str(step)
        saved = checkpoints.write(
            directory,
            model.adapter_config(self._model, policy.base_model),
            model.adapter_tensors(self._model),
            optimizer.state_of(self._parameters, adamw),
        )
        after = PolicyVersion(
            id=policy_version_id(policy.run_id, policy.agent, step),
            run_id=policy.run_id,
            agent=policy.agent,
            step=step,
            base_model=policy.base_model,
            adapter_uri=str(directory),
        )
        return after, Checkpoint(
            id=content_id("checkpoint", after.id, saved.sha256),
            policy_version_id=after.id,
            directory=str(directory),
            sha256=saved.sha256,
            size_bytes=saved.size_bytes,
        )
