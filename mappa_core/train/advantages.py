"""Baselines and normalisers over one agent's batch of one iteration.

All leave unscored actions out. `estimators` says which of them an estimator takes.
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
    means, index, _ = _group_means(rewards, groups)
    return rewards - means[index]


def leave_one_out(rewards: Tensor, groups: Sequence[UUID]) -> Tensor:
    """Each reward minus the mean of the others of its group; (N,) -> (N,).

    A_i = R_i - sum_{j != i} R_j / (k - 1) = k / (k - 1) (R_i - mean) for a group of k >= 2
    (RLOO, arXiv 2402.14740); 0 for a group of one.
    """
    means, index, counts = _group_means(rewards, groups)
    return (rewards - means[index]) * (counts / (counts - 1).clamp_min(1))[index]


def group_normalised(rewards: Tensor, groups: Sequence[UUID]) -> Tensor:
    """(R - mean) / std over the group, sample deviation as published; (N,) -> (N,).

    GRPO (arXiv 2402.03300, section 4.1.2); 0 in a group whose rewards are all the same.
    """
    means, index, counts = _group_means(rewards, groups)
    centred = rewards - means[index]
    squares = torch.zeros_like(means).index_add(0, index, centred.square())
    deviations = (squares / (counts - 1).clamp_min(1)).sqrt()[index]
    return torch.where(deviations < ROUNDING, 0.0, centred / deviations.clamp_min(ROUNDING))


def _group_means(rewards: Tensor, groups: Sequence[UUID]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of each group, each reward's group, and each group's size."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    index = torch.tensor([numbers[group] for group in groups], dtype=torch.int64)
    counts = index.bincount(minlength=len(numbers))
    sums = torch.zeros(len(numbers), dtype=rewards.dtype).index_add(0, index, rewards)
    return sums / counts, index, counts


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
