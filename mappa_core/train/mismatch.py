"""Corrects for a sampler whose probabilities are not quite the trainer's.

An engine in bfloat16, with other kernels or with weights one update old samples from mu while the
trainer computes with pi. The same token's two log-probs, both known, say how far apart they are:

    r_t = pi_old(a_t) / mu(a_t)          c_t = min(r_t, C) if the action's mean ratio is in band

A ratio within the dead band, |log r_t| <= d, is 1. An engine rounds differently in other batches,
and a resumed run has other batches: the same tokens then still give the same weights, bit for bit,
as long as the engine is within d of the trainer. The bias is at most d of a token's gradient.
"""

import torch
from torch import Tensor

from mappa_core.train.config import MismatchConfig


def corrections(
    old_logprobs: Tensor, sampler_logprobs: Tensor, lengths: Tensor, config: MismatchConfig
) -> Tensor:
    """Compute c_t, by which each token's loss is multiplied; all 1 where nothing is corrected.

    Args:
        old_logprobs: (sum of T,) under the trainer, before the update.
        sampler_logprobs: (sum of T,) as the sampler stored them.
        lengths: (B,) int64, T of each action.
        config: The truncation's C >= 1, the dead band's d >= 0, and the mask.

    Returns:
        (sum of T,), without a gradient.
    """
    differences = (old_logprobs - sampler_logprobs).detach()
    differences = differences.where(differences.abs() > config.dead_band, 0.0)
    weights = torch.ones_like(differences)
    if config.importance == "token":
        # Truncated importance sampling, E. L. Ionides, 2008.
        weights = differences.exp().clamp_max(config.threshold)
    if config.sequence_mask is not None:
        weights = weights * sequence_mask(differences, lengths, config.sequence_mask)
    return weights


def sequence_mask(differences: Tensor, lengths: Tensor, bound: float) -> Tensor:
    """1 at the tokens of actions whose ratios' geometric mean lies in [1 / bound, bound], else 0.

    A mean and not a product, so that long actions are not all masked (GSPO, arXiv 2507.18071,
    eq. 7, taken between trainer and sampler).
    """
    means = action_means(differences, lengths)
    kept = means.abs() <= torch.tensor(bound, dtype=means.dtype).log()
    return kept.to(differences.dtype).repeat_interleave(lengths)


def action_means(values: Tensor, lengths: Tensor) -> Tensor:
    """Take the mean over each action's tokens; (sum of T,) -> (B,)."""
    owners = torch.arange(len(lengths)).repeat_interleave(lengths)
    sums = torch.zeros(len(lengths), dtype=values.dtype).index_add(0, owners, values)
    return sums / lengths


def effective_share(sum_of_ratios: float, sum_of_squares: float, tokens: int) -> float:
    """(sum r)^2 / (n sum r^2) in (0, 1]: Kish's effective sample size over the sample's size."""
    return sum_of_ratios**2 / (tokens * sum_of_squares)
