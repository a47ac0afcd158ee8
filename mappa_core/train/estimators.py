"""What each token of an action is worth: one function per estimator, by the name users write.

All take the rewards of one agent's batch of one iteration and give (sum of T,) advantages; a
statistic is over that batch or over the actions of one problem in it, never over a team. Where the
KL is in the reward, its return to go is taken off the same way for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from torch import Tensor

from mappa_core.train.advantages import group_baseline, group_normalised, leave_one_out, normalise
from mappa_core.train.config import Estimator


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
        """One value per action to every token's return: G_t = value - beta sum_{s >= t} kl_s."""
        return values.repeat_interleave(self.lengths) - self.penalties


def reinforce(given: Rewards) -> Tensor:
    """A_t = G_t (REINFORCE, R. J. Williams, 1992, no baseline)."""
    return given.returns(given.rewards)


def reinforce_plus_plus(given: Rewards) -> Tensor:
    """A_t = (G_t - mean(G)) / std(G) over the batch (REINFORCE++, arXiv 2501.03262)."""
    return normalise(given.returns(given.rewards), given.weights)


def reinforce_plus_plus_baseline(given: Rewards) -> Tensor:
    """R minus its problem's mean, then as REINFORCE++ (arXiv 2501.03262, the baseline variant)."""
    compared = group_baseline(given.rewards, given.problems)
    return normalise(given.returns(compared), given.weights)


def rloo(given: Rewards) -> Tensor:
    """R minus the mean of the problem's other actions (RLOO, arXiv 2402.14740)."""
    return given.returns(leave_one_out(given.rewards, given.problems))


def grpo(given: Rewards) -> Tensor:
    """(R - mean) / std of the problem's actions (GRPO, arXiv 2402.03300, section 4.1.2)."""
    return given.returns(group_normalised(given.rewards, given.problems))


def dr_grpo(given: Rewards) -> Tensor:
    """R minus the problem's mean, unscaled (Dr. GRPO, arXiv 2503.20783, section 3).

    The paper divides a loss by a constant length, too: `loss_over=budget`.
    """
    return given.returns(group_baseline(given.rewards, given.problems))


ESTIMATORS: Mapping[Estimator, Callable[[Rewards], Tensor]] = {
    "reinforce": reinforce,
    "reinforce++": reinforce_plus_plus,
    "reinforce++-baseline": reinforce_plus_plus_baseline,
    "rloo": rloo,
    "grpo": grpo,
    "dr-grpo": dr_grpo,
}
