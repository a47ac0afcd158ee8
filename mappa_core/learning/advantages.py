"""Advantages: the baseline and the normaliser (REINFORCE++, arXiv 2501.03262).

Both are over one agent's batch of one iteration, and both leave unscored actions out.
"""

from collections.abc import Sequence
from uuid import UUID

import torch
from torch import Tensor

ROUNDING = 1e-9
"""Differences of float64 rewards below this are rounding, not signal."""


def group_baseline(rewards: Tensor, groups: Sequence[UUID]) -> Tensor:
    """Each reward minus the mean of its group: A_i = R_i - mean(R of the group); (N,) -> (N,).

    REINFORCE++-baseline (arXiv 2501.03262): reshapes the reward, so hard and easy problems weigh
    alike; the normalisation that follows is over the whole batch, not the group.
    """
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    index = torch.tensor([numbers[group] for group in groups], dtype=torch.int64)
    sums = torch.zeros(len(numbers), dtype=rewards.dtype).index_add(0, index, rewards)
    return rewards - (sums / index.bincount(minlength=len(numbers)))[index]


def normalise(values: Tensor, weights: Tensor) -> Tensor:
    """(A - mean) / std with weighted mean and population deviation; all zero where std is.

    Args:
        values: (sum of T,) float64.
        weights: (sum of T,) float64, sums to 1.
    """
    centred = values - (weights * values).sum()
    deviation = (weights * centred.square()).sum().sqrt()
    if deviation < ROUNDING:
        return torch.zeros_like(values)
    normalised = centred / deviation
    # Exactly zero where only rounding is left: such an action needs no gradient at all.
    return torch.where(normalised.abs() < ROUNDING, 0.0, normalised)
