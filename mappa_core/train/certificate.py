"""Measures estimators against exact policy gradients: how large their bias is, and where it points.

An estimate is (1 / E) sum grad log pi(a) A over a batch of E episodes, with the advantages before
they are scaled by a number of the whole batch (`Estimator.scales`); Dr. GRPO's (G - 1) / G of a
group of G is taken out, too. So an estimator without bias has an expectation equal to the exact
gradient g. What is shipped is scaled and divided by the number of actions, not of episodes, both
known numbers of the batch; only its direction can be compared. GRPO has no one scale: its
direction is compared as well.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mappa_core.train.estimators import Estimator, Rewards, dr_grpo, grpo, scaled
from mappa_core.train.toy_teams import Played, Team, exact_gradient, play


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Gradients estimated from each of B batches; (B, M), one column a moment of the team."""

    unscaled: Tensor
    shipped: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Of the mean of B estimates, over |g|, with its Monte Carlo error."""

    along: float | None
    """Along g: the slope less 1; None where only the direction can be compared."""
    along_error: float
    """Standard error."""
    across: float
    """Length of what is orthogonal to g."""
    across_error: float
    """What it comes to by chance alone: root mean square."""
    p_along: float
    """Probability of one as large by chance; 1 where only the direction can be compared."""
    p_across: float
    noise: float
    """Variance of one estimate, over the square of its mean along g."""


Size = tuple[int, int]
"""Problems of a batch, and episodes of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one estimator's gradients of one team are, at one size of batch."""

    team: str
    estimator: str
    discount: float | None
    """As in `exact_gradient`."""
    size: Size
    unscaled: Bias
    shipped: Bias
    first: tuple[float, float]
    """Mean advantage as shipped of action 1 less that of action 0 at the start of an episode, and
    its standard error."""


def certify(
    team: Team,
    size: Size,
    estimators: Iterable[tuple[str, Estimator]],
    *,
    discounts: Sequence[float | None] = (None, 1.0),
    total: int,
    seed: int = 0,
) -> Iterator[Verdict]:
    """Measure each estimator on the same `total` sampled episodes.

    Where it depends on what was written whether an action is left out, the gradient to compare with
    is that of the team with nothing left out, and only the direction is.
    """
    counted = team.counted()
    fair = bool((counted[:, 0] == counted[:, 1]).all())
    problems, per_problem = size
    named = tuple(estimators)
    generator = torch.Generator().manual_seed(seed)
    played = play(team, total // (problems * per_problem), problems, per_problem, generator)
    for discount in discounts:
        exact = exact_gradient(team if fair else team.all_counted(), discount)
        for name, estimator in named:
            found = estimates(team, played, estimator, discount)
            known = fair and estimator.centred is not grpo
            yield Verdict(
                team=team.name,
                estimator=name,
                discount=discount,
                size=size,
                unscaled=bias(found.unscaled, exact, known_scale=known),
                shipped=bias(found.shipped, exact, known_scale=False),
                first=_first(team, played, found),
            )


def _first(team: Team, played: Played, found: Estimates) -> tuple[float, float]:
    """Read the advantage of a first action off its gradient: E[A (a - p)] = p (1 - p) (A1 - A0)."""
    firsts = played.moments[:, 0].unique()
    chances = team.logits()[firsts].sigmoid()
    actions = played.counted.view(played.batches, -1).sum(1)
    per_episode = (
        found.shipped[:, firsts] * actions[:, None] / (played.problems * played.per_problem)
    )
    sums = (per_episode / (chances * (1 - chances))).sum(1)
    return float(sums.mean()), float(sums.std()) / math.sqrt(len(sums))


def estimates(
    team: Team, played: Played, estimator: Estimator, discount: float | None
) -> Estimates:
    """Estimate the learner's gradient from each batch; `discount` as in `exact_gradient`."""
    counted = played.counted
    chances = team.logits().sigmoid()
    moments, actions = played.moments[counted], played.actions[counted]
    batches = split(played, discount)
    centred = [estimator.centred(batch) for batch in batches]
    shipped = [
        (scaled(values, batch.weights) if estimator.scales else values) / len(values)
        for values, batch in zip(centred, batches, strict=True)
    ]
    index = _batch_of(played)[counted] * len(chances) + moments
    slopes = actions - chances[moments]

    def gradients(advantages: list[Tensor]) -> Tensor:
        sums = torch.zeros(len(batches) * len(chances), dtype=torch.float64)
        return sums.index_add(0, index, torch.cat(advantages) * slopes).view(len(batches), -1)

    size = played.per_problem
    known = size / (size - 1) if estimator.centred is dr_grpo else 1.0
    per_batch = played.problems * size
    return Estimates(unscaled=gradients(centred) * known / per_batch, shipped=gradients(shipped))


def split(played: Played, discount: float | None) -> list[Rewards]:
    """What an estimator reads of each batch; an action is one token."""
    counted = played.counted
    rows = torch.arange(len(counted))
    per_batch = played.problems * played.per_problem
    episodes = (rows % per_batch)[:, None].expand(counted.shape)[counted]
    visits = torch.arange(counted.shape[1]).expand(counted.shape)[counted]
    values = played.values(discount)[counted]
    sizes = counted.view(played.batches, -1).sum(1).tolist()
    columns = zip(episodes.split(sizes), visits.split(sizes), values.split(sizes), strict=True)
    return [
        Rewards(
            values=value,
            problems=episode // played.per_problem,
            episodes=episode,
            visits=visit,
            penalties=torch.zeros_like(value),
            lengths=torch.ones_like(episode),
            weights=torch.full_like(value, 1 / len(value)),
        )
        for episode, visit, value in columns
    ]


def _batch_of(played: Played) -> Tensor:
    rows = torch.arange(len(played.counted)) // (played.problems * played.per_problem)
    return rows[:, None].expand(played.counted.shape)


def bias(found: Tensor, exact: Tensor, *, known_scale: bool) -> Bias:
    """Compare the mean of estimates (B, M) with the exact gradient (M,)."""
    length = float(exact.norm())
    direction = exact / length
    along = found @ direction / length
    slope = 1.0 if known_scale else float(along.mean())
    across = (found / length - along[:, None] * direction) / slope
    error = float(along.std()) / math.sqrt(len(found))
    excess = float(along.mean()) - 1
    mean = across.mean(0)
    covariance = across.T.cov() / len(found)
    noise = (found.var(0).sum() / (found @ direction).mean().square()).item()
    return Bias(
        along=excess if known_scale else None,
        along_error=error,
        across=float(mean.norm()),
        across_error=float(covariance.trace().sqrt()),
        p_along=math.erfc(abs(excess) / error / math.sqrt(2)) if known_scale else 1.0,
        p_across=_chance(mean, covariance, len(found)),
        noise=noise,
    )


def _chance(mean: Tensor, covariance: Tensor, count: int) -> float:
    """Probability of such a mean of `count` where the true one is 0 (Hotelling's T squared)."""
    from scipy import special  # half a second, for few commands

    values, vectors = torch.linalg.eigh(covariance)
    free = values > 1e-9 * values.max()
    statistic = float(((mean @ vectors)[free].square() / values[free]).sum())
    degrees = int(free.sum())
    rest = count - degrees
    return float(special.fdtrc(degrees, rest, statistic * rest / degrees / (count - 1)))
