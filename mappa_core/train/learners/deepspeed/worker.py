"""Runs one rank: `torchrun ... -m mappa_core.train.learners.deepspeed.worker INBOX`.

A rank lives as long as the process that started it, and does one task after the other; between two
it keeps nothing but its place among the ranks. Every rank reads the same task and takes each n-th
micro-batch; sums over ranks are those of one process, because the weights of a minibatch's tokens
are fixed before it is cut.
"""

import gc
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, distributed

from mappa_core.cluster.inbox import next_task, tell_progress
from mappa_core.cluster.storage import drop_earlier
from mappa_core.core.errors import DiskFull, LearnerError, MappaError
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.core.settings import Settings
from mappa_core.models.device import resolve_device
from mappa_core.models.tensor_slices import StreamedTensors, TensorSlices
from mappa_core.train import checkpoints
from mappa_core.train.batches import micro_batched
from mappa_core.train.clipped_objective import loss_of
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.learners import memory, model, optimizer
from mappa_core.train.learners.checkpoint_learner import UpdateJob, UpdateResult
from mappa_core.train.learners.deepspeed import loading, zero
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
from mappa_core.train.prefix_tree import PrefixTree
from mappa_core.train.token_logprobs import TokenLogprobs

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

    from mappa_core.train.learners.reading import Reading

T = TypeVar("T")


class Rank:
    """This process's part of one task."""

    def __init__(self, task: RankTask, file: Path) -> None:
        """Load this rank's part of the policy's weights; the task lies in `file`."""
        self.file, self.task, self.learner = file, task, task.learner
        deepspeed, update = task.learner.deepspeed, task.update
        device = resolve_device(task.learner.device)
        bfloat16 = zero.holds_bfloat16(deepspeed, device)
        settings = zero.settings(task.learner, bfloat16=bfloat16)
        self.trainee, self.before = loading.load(task, update.seed if update else 0, settings)
        self.parameters = model.trained_parameters(self.trainee)
        self.rate = None if update is None else self._rate(update)
        reader = zero.Reader(self.trainee)
        self.call: Callable[[Callable[[], object]], object] = reader
        sharded = deepspeed.stage == loading.WEIGHTS_STAGE
        if not sharded:
            self._choose_reading()
        # Reading takes no optimizer, and an engine only where it gathers what is partitioned.
        self.engine: DeepSpeedEngine | None = None
        if sharded or update is not None:
            self.call = self.engine = zero.open_engine(
                reader, task.learner, self.before, self.rate, bfloat16=bfloat16
            )
        elif bfloat16:
            zero.cast_parameters(reader)
        if sharded:
            self.call(self._choose_reading)

    def _rate(self, job: UpdateJob) -> float:
        return optimizer.learning_rate(self.learner, job.policy.step, job.total_steps)

    def _choose_reading(self) -> None:
        self.reading: Reading = choose_reading(model.inner(self.trainee), self.learner)

    def close(self) -> None:
        """Let go of the weights."""
        if self.engine is not None:
            zero.release(self.engine)

    def _read(self, tree: PrefixTree, temperature: float) -> tuple[Tensor, Tensor | None]:
        """Read log-probabilities and entropies of the response tokens, (sum of T,) each."""
        read = self.reading.read(tree, temperature)
        return read.logprobs, read.entropies

    def _called(self, tree: PrefixTree, temperature: float) -> tuple[Tensor, Tensor | None]:
        found = self.call(partial(self._read, tree, temperature))
        tell_progress(self.file)
        return cast("tuple[Tensor, Tensor | None]", found)

    def logprobs(self, actions: Sequence[ScoredAction] | Sequence[TrainingSample]) -> Rows:
        """Read the log-probabilities of every action's tokens, on every rank; shapes (N, T)."""
        mine = read_rows(
            actions,
            self.reading.cut,
            lambda tree, temperature: self._called(tree, temperature)[0],
            lambda parts: [part for part, _ in _dealt(parts)],
        )
        found = {i: row for one in _gathered(mine) for i, row in one.items()}
        return tuple(found[i] for i in range(len(actions)))

    def update(self, job: UpdateJob) -> UpdateResult | None:
        """Compute the whole update; the first rank writes the checkpoint and has the result."""
        started = time.monotonic()
        zero.restore_moments(self._updating, self.parameters, _state_before(job))
        # Each step is taken by `_step`: what is saved is decided by what the guard says of it.
        steps = optimizer_steps(job, self.learner, logprobs=self.logprobs, backward=self._step)
        metrics = steps.metrics(job.samples, time.monotonic() - started)
        metrics |= {"learning_rate": self._rate(job), "ranks": float(distributed.get_world_size())}
        metrics["read_padded"] = float(self.reading.way == "padded")
        moved = bool(steps.taken) and steps.skipped is None
        saved = self._save(job, *(self._after() if moved else self._unmoved(job)))
        if saved is None:
            return None
        return UpdateResult(metrics=metrics, saved=saved, skipped=steps.skipped)

    @property
    def _updating(self) -> "DeepSpeedEngine":
        assert self.engine is not None, "an update has an engine at every stage"
        return self.engine

    def _step(self, minibatch: Sequence[TrainingSample], algorithm: AlgorithmConfig) -> StepTaken:
        engine = self._updating
        parts = micro_batched(minibatch, algorithm, self.reading.cut)
        tally, ranks = Tally(), distributed.get_world_size()
        mine = _dealt(parts)
        for number, (batch, counts) in enumerate(mine):
            engine.set_gradient_accumulation_boundary(number == len(mine) - 1)
            logprobs, entropies = self._called(batch.tree, batch.temperature)
            tokens = TokenLogprobs(logprobs=logprobs.float(), entropies=entropies)
            step = loss_of(batch, tokens, algorithm)
            # DeepSpeed takes the mean over the ranks, and these are shares of one sum.
            share = step.loss * ranks if counts else step.loss * 0.0
            engine.backward(share, scale_wrt_gas=False)
            if counts:
                tally.add(batch, step)
        engine.step()
        tell_progress(self.file)
        total = Tally()
        for one in _gathered(tally):
            total.merge(one)
        return finite_step(total, float(engine.get_global_grad_norm() or 0.0))

    def _after(self) -> tuple[StreamedTensors, StreamedTensors]:
        """Gather weights and moments as they are written."""
        names = model.file_names(self.trainee)
        return (
            zero.weights(self.parameters, names, self.before),
            zero.moments(self._updating, self.parameters, self.before),
        )

    def _unmoved(self, job: UpdateJob) -> tuple[StreamedTensors, StreamedTensors]:
        """Read weights and moments as they were before the update."""
        names, before = model.file_names(self.trainee), self.before
        weights = StreamedTensors(
            shapes={names[name]: shape for name, shape in before.shapes.items()},
            tensors=(
                before.part(name, 0, math.prod(before.shapes[name]))
                .view(before.shapes[name])
                .float()
                for name in loading.file_order(names)
            ),
        )
        state = _state_before(job)
        shapes = {} if state is None else state.shapes
        moments = (state.whole(name) for name in sorted(shapes)) if state else iter(())
        return weights, StreamedTensors(shapes=shapes, tensors=moments)

    def _save(
        self, job: UpdateJob, weights: StreamedTensors, state: StreamedTensors
    ) -> checkpoints.Saved | None:
        """Write the checkpoint on the first rank, with the others' help."""
        weights, state = self._told(weights), self._told(state)
        if distributed.get_rank() != 0:
            for _ in itertools.chain(weights.tensors, state.tensors):
                pass
            return None
        # It is there until it has ended, or the update was taken up again.
        if not self.file.exists():
            raise LearnerError(f"the task {self.file} is gone: nothing was saved")
        config = model.config(self.trainee, job.policy.base_model)
        return checkpoints.write(Path(job.directory), config, weights, state)

    def _told(self, tensors: StreamedTensors) -> StreamedTensors:
        """Tell of each tensor as it is taken."""

        def taken() -> Iterator[Tensor]:
            for tensor in tensors.tensors:
                tell_progress(self.file)
                yield tensor

        return replace(tensors, tensors=taken())


def _state_before(job: UpdateJob) -> TensorSlices | None:
    """Look up the moments in the policy's checkpoint, which was verified when it was read."""
    if job.policy.adapter_uri is None:
        return None
    return TensorSlices([Path(job.policy.adapter_uri) / checkpoints.OPTIMIZER])


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


def _of_all(mine: Mapping[str, float]) -> dict[str, float]:
    """Take the largest of each figure over the ranks."""
    every = _gathered(mine)
    return {name: max(one[name] for one in every) for name in mine}


def on_this_node(task: RankTask) -> RankTask:
    """Fetch the task's weights where they are stored for all nodes, and have it save here."""
    if task.storage is None:
        return task
    storage, home, policy, update = task.storage, Settings().home, task.policy, task.update
    if policy.adapter_uri is not None:
        fetched = storage.on_node(Path(policy.adapter_uri), home)
        policy = replace(policy, adapter_uri=str(fetched))
    if update is not None:
        place = storage.node_place(Path(update.directory), home)
        update = replace(update, policy=policy, directory=str(place))
    return replace(task, policy=policy, update=update)


def _stored(task: RankTask, directory: str) -> None:
    """Store what was saved on this node in `directory` for all nodes."""
    if task.storage is not None and task.update is not None:
        task.storage.upload(Path(task.update.directory), Path(directory))
        drop_earlier(Path(directory))


def done(asked: RankTask, file: Path) -> RankReply:
    """Do a task, and let go of all that it took."""
    task = on_this_node(asked)
    tell_progress(file)
    device = resolve_device(task.learner.device)
    with memory.measured(torch.device(device)) as peak:
        rank = Rank(task, file)
        tell_progress(file)
        try:
            if task.update is None:
                return RankReply(logprobs=rank.logprobs(task.actions))
            result = rank.update(task.update)
            tell_progress(file)
            if result is not None:
                _stored(asked, task.update.directory)
        finally:
            rank.close()
            del rank
            # Modules, their hooks and the engine refer to each other.
            gc.collect()
            memory.release()
    highest = _of_all(peak.metrics())
    if result is None:
        return RankReply()
    return RankReply(update=replace(result, metrics={**result.metrics, **highest}))


def reply_to(task: RankTask, file: Path) -> RankReply:
    """Do the task in `file`; what fails outside is a reply, too."""
    try:
        with memory.gpu_failures_named():
            return done(task, file)
    except MappaError as error:
        return RankReply(error=str(error), disk_full=isinstance(error, DiskFull))


def main(inbox: Path) -> None:
    """Join the other ranks at the first task, then do what comes."""
    for number in itertools.count():
        file = next_task(inbox, number)
        task = read_task(file)
        if not distributed.is_initialized():
            zero.start_ranks(resolve_device(task.learner.device))
        reply = reply_to(task, file)
        if distributed.get_rank() == 0 or reply.error:
            # Where the task was taken up again, its folder is gone.
            with suppress(FileNotFoundError):
                write_reply(file, reply)
        if reply.error is not None:
            # The other ranks may wait for this one; the launcher ends them.
            sys.exit(1)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    end_with_parent(place)
    main(place)
