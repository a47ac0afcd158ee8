"""Training samples as tensors: a minibatch cut into micro-batches of one prefix tree each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mappa_core.config import AlgorithmConfig
from mappa_core.domain.records import TrainingSample
from mappa_core.learning.objective import token_weights
from mappa_core.learning.prefix_tree import PrefixTree, build, micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch; per-token tensors are (sum of T,) float32, in the order of `tree.reads`."""

    tree: PrefixTree
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    """Each token's share of the whole minibatch's mean, whatever the micro-batch."""
    reference_logprobs: Tensor | None
    """Under the base policy; None where no sample brings them."""


def has_gradient(sample: TrainingSample, algorithm: AlgorithmConfig) -> bool:
    """Whether the sample's loss can move the weights: an advantage, or a KL pull."""
    return any(sample.advantages) or algorithm.kl == "k2_loss"


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
    if algorithm.kl == "k2_loss" and any(s.reference_logprobs is None for s in samples):
        raise ValueError("kl=k2_loss needs the base policy's log-probs of every sample")
    lengths = [len(sample.token_ids) for sample in samples]
    weights = token_weights(lengths, algorithm.loss_over).split(lengths) if samples else ()
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


def _batch(samples: Sequence[TrainingSample], weights: Sequence[Tensor]) -> Batch:
    references = [s.reference_logprobs for s in samples if s.reference_logprobs is not None]
    return Batch(
        tree=build([s.prompt_token_ids for s in samples], [s.token_ids for s in samples]),
        old_logprobs=_flat([s.old_logprobs for s in samples]),
        advantages=_flat([s.advantages for s in samples]),
        weights=torch.cat(list(weights)).float(),
        reference_logprobs=_flat(references) if len(references) == len(samples) else None,
    )


def _flat(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float32)
