"""Says what each token of an action is worth: one row per estimator, by the name users write.

All take the values R of one agent's batch of one iteration, where R is an action's reward or its
return (`algorithm.credit`), and give (sum of T,) advantages; g is then the mean of
grad log pi(a | s) times advantage.

What an action caused is in the later actions of its own episode. A baseline b made of other
episodes alone is independent of it, and E[grad log pi(a | s) b] = 0 whatever b is: such an
estimator is unbiased, for few peers as for many. So an action's peers are those of other episodes,
of the same problem and at the same visit (AT-GRPO, arXiv 2510.11062, groups by agent and turn). A
return is compared as a whole: a sum of compared parts charges a baseline for each further turn,
and whether there is one was the policy's choice (verl's issue 7244).

Dividing by a number of the whole batch, its root mean square, scales all actions alike: the
direction is kept, up to that number's own correlation with the batch, which is O(1 / N).
`mappa bench estimators` measures all of it against exact gradients.

Add an estimator here and nowhere else: a function, its name and its row. Torch is used through
tensors' own methods only, because the configuration reads this table and imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

ESTIMATOR_VERSION = "2"
"""Of what the estimators compute; it changes with any advantage that any of them gives."""

ROUNDING = 1e-9
"""Differences of float64 rewards below this are rounding, not signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """What a batch of N >= 1 actions earned; float64, and int64 where it says who is compared."""

    values: Tensor
    """(N,): R, an action's reward in [0, 1] or its return."""
    problems: Tensor
    """(N,): numbers from 0; equal ones are the same problem."""
    episodes: Tensor
    """(N,): numbers from 0; equal ones are the same episode."""
    visits: Tensor
    """(N,): how many actions the agent had before in the same episode, counted or not."""
    penalties: Tensor
    """(sum of T,): beta sum_{s >= t} kl_s, the KL still to come; zeros where it is no reward."""
    lengths: Tensor
    """(N,): T of each action."""
    weights: Tensor
    """(sum of T,): each token's share in batch statistics; sums to 1."""

    def per_token(self, values: Tensor) -> Tensor:
        """Spread one value per action over its tokens: G_t = value - beta sum_{s >= t} kl_s.

        Shapes (N,) -> (sum of T,).
        """
        return values.repeat_interleave(self.lengths) - self.penalties

    def groups(self) -> Tensor:
        """Number the pairs of problem and visit, whose actions are peers: (N,)."""
        return _pairs(self.problems, self.visits)


def reinforce(given: Rewards) -> Tensor:
    """A_t = G_t (REINFORCE, R. J. Williams, 1992, no baseline)."""
    return given.per_token(given.values)


def batch_baseline(given: Rewards) -> Tensor:
    """A_t = G_t - b, b the batch's mean without the action's episode.

    Over its root mean square it is REINFORCE++ (arXiv 2501.03262), which takes the mean of all and
    the deviation; where an episode has one action that is the same number, as N / (N - 1) cancels.
    """
    returns = given.per_token(given.values)
    episodes = given.episodes.repeat_interleave(given.lengths)
    sums = _sums(given.weights * returns, episodes)
    shares = _sums(given.weights, episodes)
    others = (sums.sum() - sums) / (shares.sum() - shares)
    return returns - others[episodes]


def rloo(given: Rewards) -> Tensor:
    """A = R - b, b the `baseline` of the problem's other episodes (RLOO, arXiv 2402.14740).

    Over the batch's root mean square it is the baseline variant of REINFORCE++ (arXiv 2501.03262),
    which takes the mean of all the problem's actions and the deviation; where groups are of one
    size k and an episode has one action that is the same number, as k / (k - 1) cancels.
    """
    return given.per_token(_rounded(given.values - baseline(given)))


def grpo(given: Rewards) -> Tensor:
    """A = (R - mean) / std of the problem's actions at this visit (GRPO, arXiv 2402.03300, 4.1.2).

    The deviation is the sample's, as published; 0 in a group whose values are all the same. It is
    another number for each group: a known bias to groups that agree (arXiv 2503.20783, section 3).
    """
    groups = given.groups()
    centred, counts = _centred(given.values, groups)
    variances = _sums(centred.square(), groups)[groups] / (counts - 1).clamp_min(1)
    deviations = variances.sqrt()
    divided = centred / deviations.clamp_min(ROUNDING)
    return given.per_token(divided.masked_fill(deviations < ROUNDING, 0.0))


def dr_grpo(given: Rewards) -> Tensor:
    """A = R - mean of the problem's actions at this visit (Dr. GRPO, arXiv 2503.20783, section 3).

    That is (k - 1) / k of RLOO's in a group of k: a scale, where all groups are of one size. The
    paper divides a loss by a constant length, too: `loss_over=budget`.
    """
    return given.per_token(_rounded(_centred(given.values, given.groups())[0]))


def baseline(given: Rewards) -> Tensor:
    """Compute the mean R of other episodes' actions that are most like this one: (N,).

    They are those of its problem at its visit. Where there are none, those of other problems at its
    visit, and else all: were the action left out instead, late turns would weigh by how likely a
    peer is. NaN where there is no other episode.
    """
    means = given.values.new_full(given.values.shape, float("nan"))
    for pool in (given.groups(), given.visits, given.visits.new_zeros(given.visits.shape)):
        means = means.where(~means.isnan(), mean_of_others(given.values, pool, given.episodes))
    return means


def mean_of_others(values: Tensor, pool: Tensor, episodes: Tensor) -> Tensor:
    """Compute the mean of the values in an action's pool that are not of its own episode.

    All (N,); `pool` and `episodes` are numbers from 0. NaN where there are none.
    """
    own = _pairs(pool, episodes)
    ones = values.new_ones(values.shape)
    sums = _sums(values, pool)[pool] - _sums(values, own)[own]
    counts = _sums(ones, pool)[pool] - _sums(ones, own)[own]
    return (sums / counts).masked_fill(counts == 0, float("nan"))


def _centred(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Each value less its group's mean, and its group's size; both (N,)."""
    counts = groups.bincount()[groups]
    return values - _sums(values, groups)[groups] / counts, counts


def _sums(values: Tensor, groups: Tensor) -> Tensor:
    """The sum of each group's values."""
    return values.new_zeros(int(groups.max()) + 1).index_add(0, groups, values)


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Number the pairs that occur; (N,), (N,) -> (N,)."""
    return (first * (second.max() + 1) + second).unique(return_inverse=True)[1]


def scaled(values: Tensor, weights: Tensor) -> Tensor:
    """Divide by the root of the weighted mean square; all 0 where that is 0.

    Both are (sum of T,) float64; the weights sum to 1.
    """
    size = (weights * values.square()).sum().sqrt()
    return _rounded(values / size) if size >= ROUNDING else values.new_zeros(values.shape)


def _rounded(values: Tensor) -> Tensor:
    """Exactly zero where only rounding is left: such an action needs no gradient at all."""
    return values.masked_fill(values.abs() < ROUNDING, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """One way to say what an action is worth."""

    centred: Callable[[Rewards], Tensor]
    """Rewards of N actions to (sum of T,) advantages, before they are scaled."""
    summary: str
    """For the configuration's page."""
    compares: Literal["nothing", "batch", "problem"] = "problem"
    """Whose episodes an action is held against."""
    scales: bool = False
    """Whether advantages are divided by their root mean square over the batch."""

    def advantages(self, given: Rewards) -> Tensor:
        """Compute what each token is worth: (sum of T,)."""
        centred = self.centred(given)
        return scaled(centred, given.weights) if self.scales else centred


EstimatorName = Literal[
    "reinforce++", "reinforce++-baseline", "reinforce", "rloo", "grpo", "dr-grpo"
]
ESTIMATORS: Mapping[EstimatorName, Estimator] = {
    "reinforce++": Estimator(
        centred=batch_baseline,
        summary="minus the mean of the batch's other episodes, over the batch's root mean square",
        compares="batch",
        scales=True,
    ),
    "reinforce++-baseline": Estimator(
        centred=rloo,
        summary="minus the mean of the problem's other episodes at the same visit, over the same",
        scales=True,
    ),
    "reinforce": Estimator(
        centred=reinforce,
        summary="as it is",
        compares="nothing",
    ),
    "rloo": Estimator(
        centred=rloo,
        summary="minus the mean of the problem's other episodes at the same visit",
    ),
    "grpo": Estimator(centred=grpo, summary="mean and deviation of problem and visit"),
    "dr-grpo": Estimator(centred=dr_grpo, summary="minus the mean of problem and visit"),
}
