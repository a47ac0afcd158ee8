"""Takes the optimizer steps of an update, in the same order on every learner."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mappa_core.core.errors import LearnerError
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.batches import has_gradient, shared_temperature
from mappa_core.train.config import AlgorithmConfig, LearnerConfig
from mappa_core.train.learners.checkpoint_learner import UpdateJob
from mappa_core.train.metrics import Steps, StepTaken, Tally, out_of_band
from mappa_core.train.prefix_tree import Cut, PrefixTree, build

Rows = tuple[tuple[float, ...], ...]
"""Log-probabilities of N actions' tokens; shapes (N, T)."""


def optimizer_steps(
    job: UpdateJob,
    learner: LearnerConfig,
    *,
    logprobs: Callable[[Sequence[TrainingSample]], Rows],
    backward: Callable[[Sequence[TrainingSample], AlgorithmConfig], StepTaken],
    step: Callable[[], object] = lambda: None,
) -> Steps:
    """Take all optimizer steps of an update, up to one that leaves a band of the guard.

    `logprobs` reads samples with the weights before the update, `backward` computes a minibatch's
    gradient, and `step` moves the weights by it where `backward` has not.
    """
    samples, algorithm = job.samples, job.algorithm
    known = [sample.trainer_logprobs for sample in samples]
    if not needs_trainer_logprobs(learner, algorithm):
        # Read among others they would differ in the last bit from those the step computes.
        samples = tuple(replace(sample, trainer_logprobs=None) for sample in samples)
    elif None in known:
        rows = zip(samples, logprobs(samples), strict=True)
        samples = tuple(replace(sample, trainer_logprobs=row) for sample, row in rows)
    taken: list[StepTaken] = []
    for minibatch in minibatches(samples, learner, job.seed):
        if not any(has_gradient(sample, algorithm) for sample in minibatch):
            continue
        taken.append(backward(minibatch, algorithm))
        reason = out_of_band(taken[-1].figures(), algorithm.guard)
        if reason is not None:
            return Steps(taken=tuple(taken), skipped=reason)
        step()
    return Steps(taken=tuple(taken), skipped=None)


def needs_trainer_logprobs(learner: LearnerConfig, algorithm: AlgorithmConfig) -> bool:
    """Tell whether the weights before the update must be read; with one step they are at hand.

    A correction needs them, and so does a guard of the mismatch: from the second step on it would
    take what the policy has learnt for a sampler that differs.
    """
    mismatch, guard = algorithm.mismatch, algorithm.guard
    corrected = mismatch.importance != "none" or mismatch.sequence_mask is not None
    guarded = guard.mismatch_kl_max is not None or guard.effective_sample_size_min is not None
    return (corrected or guarded) and learner.epochs * learner.minibatches > 1


def minibatches(
    samples: Sequence[TrainingSample], learner: LearnerConfig, seed: int
) -> Iterator[list[TrainingSample]]:
    """Yield the samples of each optimizer step, epoch after epoch, in an order of the seed's."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(learner.epochs):
        order = torch.randperm(len(samples), generator=generator)
        for part in order.tensor_split(learner.minibatches):
            yield [samples[i] for i in part.tolist()]


def finite_step(tally: Tally, grad_norm: float) -> StepTaken:
    """Record one computed step.

    Raises:
        LearnerError: Its loss or its gradient is not finite.
    """
    if not math.isfinite(tally.loss) or not math.isfinite(grad_norm):
        raise LearnerError(
            f"loss {tally.loss} with gradient norm {grad_norm}: nothing was saved; lower "
            "learner.learning_rate and go on from the last checkpoint"
        )
    return StepTaken(tally=tally, grad_norm=grad_norm)


def read_rows(
    actions: Sequence[ScoredAction] | Sequence[TrainingSample],
    cut: Cut,
    read: Callable[[PrefixTree, float], Tensor],
    deal: Callable[[list[list[int]]], list[list[int]]] = lambda parts: parts,
) -> dict[int, tuple[float, ...]]:
    """Read the log-probabilities of N actions, tree by tree and without a gradient.

    `read` takes a tree and a temperature to those of the tree's response tokens, (sum of T,);
    `deal` picks the trees that are read here. Returns those of each action that was read, (T,), by
    index; an action without tokens has none.
    """
    prompts = [action.prompt_token_ids for action in actions]
    responses = [action.token_ids for action in actions]
    spoken = [i for i, response in enumerate(responses) if response]
    parts = cut([prompts[i] for i in spoken], [responses[i] for i in spoken])
    rows: dict[int, tuple[float, ...]] = {i: () for i, row in enumerate(responses) if not row}
    for part in deal([[spoken[i] for i in part] for part in parts]):
        tree = build([prompts[i] for i in part], [responses[i] for i in part])
        temperature = shared_temperature([actions[i].temperature for i in part])
        with torch.no_grad():
            values = read(tree, temperature).float().cpu()
        split = values.split([len(responses[i]) for i in part])
        rows |= {i: tuple(row.tolist()) for i, row in zip(part, split, strict=True)}
    return rows
