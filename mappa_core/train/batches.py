"""Training samples as tensors: a minibatch cut into micro-batches of one prefix tree each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.objective import token_weights
from mappa_core.train.prefix_tree import PrefixTree, build, micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch; per-token tensors are (sum of T,) float32, in the order of `tree.reads`."""

    tree: PrefixTree
    real_tokens: int
    """Of all sequences, prompts included, each counted as often as it occurs."""
    lengths: Tensor
    """(B,) int64: T of each sequence."""
    sampler_logprobs: Tensor
    trainer_logprobs: Tensor | None
    """Under the weights before the update; None where those are the weights at hand."""
    advantages: Tensor
    weights: Tensor
    """Each token's share of the whole minibatch's mean, whatever the micro-batch."""
    reference_logprobs: Tensor | None
    """Under the base policy; None where no sample brings them."""


def has_gradient(sample: TrainingSample, algorithm: AlgorithmConfig) -> bool:
    """Whether the sample's loss can move the weights: an advantage, or a KL pull."""
    return any(sample.advantages) or algorithm.kl_in_loss


def micro_batched(
    samples: Sequence[TrainingSample], algorithm: AlgorithmConfig, budget_tokens: int
) -> list[Batch]:
    """Cut a minibatch so that no tree has more distinct tokens than the budget.

    A sample without a gradient takes its share of the mean, but is not computed.

    Args:
        samples: All samples of one optimizer step.
        algorithm: What the loss is averaged over, and whether a KL pull is on.
        budget_tokens: Distinct tokens per tree; one longer sample has a tree of its own.

    Raises:
        ValueError: A KL pull is on and a sample does not bring the base policy's log-probs.
    """
    if algorithm.kl_in_loss and any(s.reference_logprobs is None for s in samples):
        raise ValueError(f"kl={algorithm.kl} needs the base policy's log-probs of every sample")
    lengths = [len(sample.token_ids) for sample in samples]
    weights = _weights(lengths, algorithm).split(lengths) if samples else ()
    live = [
        (sample, weight)
        for sample, weight in zip(samples, weights, strict=True)
        if has_gradient(sample, algorithm)
    ]
    parts = micro_batches(
        [sample.prompt_token_ids for sample, _ in live],
        [sample.token_ids for sample, _ in live],
        budget_tokens,
    )
    return [_batch([live[i][0] for i in part], [live[i][1] for i in part]) for part in parts]


def _weights(lengths: Sequence[int], algorithm: AlgorithmConfig) -> Tensor:
    return token_weights(lengths, algorithm.loss_over, algorithm.loss_budget_tokens)


def _batch(samples: Sequence[TrainingSample], weights: Sequence[Tensor]) -> Batch:
    return Batch(
        tree=build([s.prompt_token_ids for s in samples], [s.token_ids for s in samples]),
        real_tokens=sum(len(s.prompt_token_ids) + len(s.token_ids) for s in samples),
        lengths=torch.tensor([len(s.token_ids) for s in samples], dtype=torch.int64),
        sampler_logprobs=_flat([s.old_logprobs for s in samples]),
        trainer_logprobs=_flat_if_all([s.trainer_logprobs for s in samples]),
        advantages=_flat([s.advantages for s in samples]),
        weights=torch.cat(list(weights)).float(),
        reference_logprobs=_flat_if_all([s.reference_logprobs for s in samples]),
    )


def _flat_if_all(rows: Sequence[Sequence[float] | None]) -> Tensor | None:
    known = [row for row in rows if row is not None]
    return _flat(known) if len(known) == len(rows) else None


def _flat(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float32)
