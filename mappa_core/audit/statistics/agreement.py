"""Do others see it as the coach does, and what would people have said on average?

Krippendorff's alpha (interval metric) from the package `krippendorff`; its interval takes problems
as drawn. Weighted kappa is Cohen's with quadratic weights on whole points. A mean that few people's
labels and many scores give together is prediction-powered inference (Angelopoulos, Duchi & Zrnic,
PPI++, arXiv 2311.01453).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

from mappa_core.audit.frame import Factor, Floats, Ints, LabelledScores
from mappa_core.audit.statistics.jackknife import (
    FEWEST_PROBLEMS,
    LEVEL,
    deviation,
    freedom,
    reach,
    student,
)
from mappa_core.audit.statistics.regression import Estimate, clustered_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two scorers agree on the same actions."""

    alpha: float
    """Krippendorff's, 1 is perfect and 0 is chance."""
    low: float
    high: float
    """95 % interval of alpha, on further problems."""
    kappa: float
    """Quadratically weighted, on whole points."""
    difference: float
    """Mean of the first minus the second, in points."""
    actions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedMean:
    """A mean of people's scores over all actions, from a random sample of them."""

    value: float
    low: float
    high: float
    trust: float
    """How much of the coach's scores it used, in [0, 1]."""
    labels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideTrainer:
    """How a coach scored actions that another one's scores trained."""

    agent: str
    """`all` for those of all agents together."""
    correlation: float | None
    """Pearson's; None where either coach gave all of them one score."""
    trained: float
    """Mean score of the coach that trained."""
    other: float
    """Mean score of the other one."""
    difference: Estimate
    """The other one's mean minus that of the coach that trained; problems are the clusters."""
    actions: int
    problems: int


def beside_trainer(
    trained: Floats, other: Floats, agent: Factor, problems: Ints
) -> Iterator[BesideTrainer]:
    """Compare another coach's scores with those that trained, by agent and, of several, over all.

    Only actions that both scored count; an agent without one has no line.

    Args:
        trained: (N,) scores in [0, 10], NaN where there is none.
        other: The same actions.
        agent: Of each.
        problems: (N,) codes.
    """
    both = ~np.isnan(trained) & ~np.isnan(other)
    of = {agent.names[code]: both & (agent.codes == code) for code in agent.present()}
    if len(of) > 1:
        of["all"] = both
    for name, rows in of.items():
        if rows.any():
            yield _beside(name, trained[rows], other[rows], problems[rows])


def _beside(agent: str, trained: Floats, other: Floats, problems: Ints) -> BesideTrainer:
    told = bool(np.ptp(trained) and np.ptp(other))
    return BesideTrainer(
        agent=agent,
        correlation=float(np.corrcoef(trained, other)[0, 1]) if told else None,
        trained=float(trained.mean()),
        other=float(other.mean()),
        difference=clustered_mean(other - trained, problems),
        actions=len(trained),
        problems=len(np.unique(problems)),
    )


def agreement(first: Floats, second: Floats, problems: Ints) -> Agreement | None:
    """Compare two scorers; None below three actions with both.

    Args:
        first: (N,) scores in [0, 10], NaN where there is none.
        second: The same actions.
        problems: (N,) codes; actions on one problem are agreed about alike.
    """
    both = ~np.isnan(first) & ~np.isnan(second)
    pair = np.stack([first[both], second[both]])
    count = pair.shape[1]
    if count < 3:
        return None
    low, high = alpha_interval(pair, problems[both])
    return Agreement(
        alpha=alpha(pair),
        low=low,
        high=high,
        kappa=weighted_kappa(pair[0], pair[1]),
        difference=float((pair[0] - pair[1]).mean()),
        actions=count,
    )


def alpha(scores: Floats) -> float:
    """Krippendorff's alpha of (scorers, actions), NaN where one did not score; 1 where all is one.

    Computed on half points, as coaches give them; the package's time grows with distinct values.
    """
    rounded = np.round(2 * scores)
    if len(np.unique(rounded[~np.isnan(rounded)])) < 2:
        return 1.0
    import krippendorff  # and scipy: two seconds, for few commands

    return float(krippendorff.alpha(rounded, level_of_measurement="interval"))


def alpha_interval(pair: Floats, problems: Ints) -> tuple[float, float]:
    """The 95 % interval of alpha: log(1 - alpha), jackknifed over problems.

    The lower end is also that with one problem more, of middling size, on which the scorers agree
    no better than by chance: a kind of problem that they differ about may not be among few. Where
    nothing differs, so many problems are of such a kind as leave 2.5 % to seeing none. Below three
    problems alpha could be anything.

    Args:
        pair: (2, N) scores.
        problems: (N,) codes.
    """
    codes = np.unique(problems, return_inverse=True)[1]
    count = int(codes.max()) + 1
    if count < FEWEST_PROBLEMS:
        return -1.0, 1.0
    first, second = np.round(2 * pair)
    columns = (np.ones(len(codes)), (first - second) ** 2, first + second, first**2 + second**2)
    sums = np.zeros((count, len(columns)))
    np.add.at(sums, codes, np.column_stack(columns))
    whole, sizes = sums.sum(axis=0), sums[:, 0]
    if not sums[:, 1].any():
        return ((1 - LEVEL) / 2) ** (1 / count), 1.0
    middle, end = float(_logarithm(whole)), reach(_logarithm(whole - sums), sizes)
    more = np.vstack([sums, _by_chance(whole) * sizes.mean()])
    without = _logarithm(more.sum(axis=0) - more)
    further = float(_logarithm(more.sum(axis=0))) + student(freedom(sizes)) * deviation(without)
    low, high = (1 - float(np.exp(each)) for each in (max(middle + end, further), middle - end))
    return max(low, -1.0), high


def _by_chance(sums: Floats) -> Floats:
    """(4,) sums of one action of mean score, on which two scorers are as far apart as any two."""
    mean, spread = sums[2] / sums[0], float(_spread(sums))
    return np.array([1, 2 * spread, mean, mean**2 / 2 + spread])


def _logarithm(sums: Floats) -> Floats:
    return np.log(np.maximum(_disagreement(sums), 1e-9))


def _spread(sums: Floats) -> Floats:
    """The variance of all scores."""
    actions, _, total, squares = np.moveaxis(sums, -1, 0)
    return (squares - total**2 / (2 * actions)) / (2 * actions - 1)


def _disagreement(sums: Floats) -> Floats:
    """1 - alpha of (..., 4) actions, squared differences, sums and squares of both scores."""
    actions, squared = sums[..., 0], sums[..., 1]
    return squared / actions / np.maximum(2 * _spread(sums), 1e-9)


def weighted_kappa(first: Floats, second: Floats) -> float:
    """Cohen's kappa with quadratic weights on whole points (Cohen 1968).

    1 - mean squared disagreement / the mean squared disagreement of independent scorers.
    """
    a, b = np.round(first), np.round(second)
    expected = a.var() + b.var() + (a.mean() - b.mean()) ** 2
    return 1.0 if expected == 0 else float(1 - ((a - b) ** 2).mean() / expected)


def corrected_mean(data: LabelledScores) -> CorrectedMean | None:
    """The mean score people would give, from all scores and few labels; None below three of them.

    mean over all of c s + mean over labelled of (y - c s), with the c in [0, 1] that makes the
    variance smallest: Cov(y, s) / ((1 + n / N) Var(s)) (PPI++, equation 6, one dimension). Only
    labels of a random sample count; actions that were picked because coaches disagree about them
    are unlike the rest.
    """
    labelled = ~np.isnan(data.labels) & data.at_random
    truth, beside, rest = data.labels[labelled], data.scores[labelled], data.scores[~labelled]
    count = len(truth)
    if count < 3:
        return None
    trust = _trust(truth, beside, rest)
    value = float((truth - trust * beside).mean())
    variance = float((truth - trust * beside).var(ddof=1)) / count
    if len(rest) > 1:
        value += trust * float(rest.mean())
        variance += trust**2 * float(rest.var(ddof=1)) / len(rest)
    reach = float(special.stdtrit(count - 1, (1 + LEVEL) / 2)) * variance**0.5
    return CorrectedMean(
        value=value, low=value - reach, high=value + reach, trust=trust, labels=count
    )


def _trust(truth: Floats, beside: Floats, rest: Floats) -> float:
    spread = float(np.concatenate([beside, rest]).var(ddof=1))
    if len(rest) < 2 or spread == 0:
        return 0.0
    together = float(np.cov(truth, beside)[0, 1])
    return float(np.clip(together / ((1 + len(truth) / len(rest)) * spread), 0, 1))
