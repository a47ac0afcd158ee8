"""Says what each token of an action is worth: one row per estimator, by the name users write.

All take the rewards of one agent's batch of one iteration and give (sum of T,) advantages. A
statistic is over that batch or over the actions of one problem in it, never over a team. Where the
KL is in the reward, its return to go is taken off the same way for all of them.

Add an estimator here and nowhere else: a function, its name and its row. Torch is used through
tensors' own methods only, because the configuration reads this table and imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import UUID

if TYPE_CHECKING:
    from torch import Tensor

ESTIMATOR_VERSION = "1"
"""Of what the estimators compute; it changes with any advantage that any of them gives."""

ROUNDING = 1e-9
"""Differences of float64 rewards below this are rounding, not signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """What a batch of N actions earned; float64."""

    rewards: Tensor
    """(N,): R in [0, 1], one per action."""
    problems: Sequence[UUID]
    """N: whose actions are compared."""
    penalties: Tensor
    """(sum of T,): beta sum_{s >= t} kl_s, the KL still to come; zeros where it is no reward."""
    lengths: Tensor
    """(N,) int64: T of each action."""
    weights: Tensor
    """(sum of T,): each token's share in batch statistics; sums to 1."""

    def returns(self, values: Tensor) -> Tensor:
        """Spread one value per action over its tokens: G_t = value - beta sum_{s >= t} kl_s.

        Shapes (N,) -> (sum of T,).
        """
        return values.repeat_interleave(self.lengths) - self.penalties


def reinforce(given: Rewards) -> Tensor:
    """A_t = G_t (REINFORCE, R. J. Williams, 1992, no baseline)."""
    return given.returns(given.rewards)


def reinforce_plus_plus(given: Rewards) -> Tensor:
    """A_t = (G_t - mean(G)) / std(G) over the batch (REINFORCE++, arXiv 2501.03262)."""
    return normalise(given.returns(given.rewards), given.weights)


def reinforce_plus_plus_baseline(given: Rewards) -> Tensor:
    """R minus its problem's mean, then as REINFORCE++ (arXiv 2501.03262, the baseline variant).

    The baseline reshapes the reward, so that hard and easy problems weigh alike; what follows is
    over the whole batch, not the problem.
    """
    return normalise(given.returns(group_baseline(given.rewards, given.problems)), given.weights)


def rloo(given: Rewards) -> Tensor:
    """R minus the mean of the k - 1 other actions of its problem (RLOO, arXiv 2402.14740).

    A_i = R_i - sum_{j != i} R_j / (k - 1) = k / (k - 1) (R_i - mean); 0 in a group of one.
    """
    means, index, counts = _group_means(given.rewards, given.problems)
    scales = counts / (counts - 1).clamp_min(1)
    return given.returns((given.rewards - means[index]) * scales[index])


def grpo(given: Rewards) -> Tensor:
    """(R - mean) / std of the problem's actions (GRPO, arXiv 2402.03300, section 4.1.2).

    The deviation is the sample's, as published; 0 in a group whose rewards are all the same.
    """
    means, index, counts = _group_means(given.rewards, given.problems)
    centred = given.rewards - means[index]
    squares = means.new_zeros(means.shape).index_add(0, index, centred.square())
    deviations = (squares / (counts - 1).clamp_min(1)).sqrt()[index]
    scaled = centred / deviations.clamp_min(ROUNDING)
    return given.returns(scaled.masked_fill(deviations < ROUNDING, 0.0))


def dr_grpo(given: Rewards) -> Tensor:
    """R minus the problem's mean, unscaled (Dr. GRPO, arXiv 2503.20783, section 3).

    The paper divides a loss by a constant length, too: `loss_over=budget`.
    """
    return given.returns(group_baseline(given.rewards, given.problems))


def group_baseline(rewards: Tensor, groups: Sequence[UUID]) -> Tensor:
    """Subtract from each reward the mean of its group: R_i - mean(R); (N,) -> (N,)."""
    means, index, _ = _group_means(rewards, groups)
    return rewards - means[index]


def _group_means(rewards: Tensor, groups: Sequence[UUID]) -> tuple[Tensor, Tensor, Tensor]:
    """Each group's mean (P,), each reward's group (N,), and each group's size (P,)."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    index = rewards.new_tensor([numbers[group] for group in groups]).long()
    counts = index.bincount(minlength=len(numbers))
    return rewards.new_zeros(len(numbers)).index_add(0, index, rewards) / counts, index, counts


def normalise(values: Tensor, weights: Tensor) -> Tensor:
    """Scale to (A - mean) / std, weighted mean and population deviation; all 0 where that is 0.

    Both are (sum of T,) float64; the weights sum to 1.
    """
    centred = values - (weights * values).sum()
    deviation = (weights * centred.square()).sum().sqrt()
    if deviation < ROUNDING:
        return values.new_zeros(values.shape)
    normalised = centred / deviation
    # Exactly zero where only rounding is left: such an action needs no gradient at all.
    return normalised.masked_fill(normalised.abs() < ROUNDING, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """One way to say what an action is worth."""

    advantages: Callable[[Rewards], Tensor]
    """Rewards of N actions to (sum of T,) advantages."""
    summary: str
    """For the configuration's page."""
    needs_group: bool = True
    """Whether it compares a problem's actions: one that has no other is then left out."""


EstimatorName = Literal[
    "reinforce++", "reinforce++-baseline", "reinforce", "rloo", "grpo", "dr-grpo"
]
ESTIMATORS: Mapping[EstimatorName, Estimator] = {
    "reinforce++": Estimator(
        advantages=reinforce_plus_plus,
        summary="batch mean and deviation",
        needs_group=False,
    ),
    "reinforce++-baseline": Estimator(
        advantages=reinforce_plus_plus_baseline,
        summary="minus the mean of the problem's actions first",
    ),
    "reinforce": Estimator(
        advantages=reinforce,
        summary="the reward",
        needs_group=False,
    ),
    "rloo": Estimator(advantages=rloo, summary="minus the mean of the others"),
    "grpo": Estimator(advantages=grpo, summary="problem's mean and deviation"),
    "dr-grpo": Estimator(advantages=dr_grpo, summary="problem's mean"),
}
