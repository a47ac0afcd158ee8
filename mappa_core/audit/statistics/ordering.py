"""How often a coach puts two pieces of work in their known order, with an interval.

    share = mean over pairs of (1 right way round, 1/2 a tie, 0 wrong way round)

Pairs of one problem share cases, so the interval's unit is the problem. It is Clopper and Pearson's
with the effective number of pairs in place of their number (Korn & Graubard 1998): what binomial
pairs of the same share would need for the variance that the problems show, less for few problems.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats, Ints
from mappa_core.audit.statistics.counting import clopper_pearson

LEVEL = 0.9
"""Of intervals: each end is a bound that holds with 95 %, so that what lies above chance by luck
does so in at most 5 %."""
CHANCE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """The share of pairs in their known order, in [0, 1]."""

    share: float
    low: float
    high: float
    """Of the 90 % interval."""
    pairs: int
    problems: int
    unscored: int
    """Pairs of which one case or both have no score."""


def ordering(better: Floats, worse: Floats, problems: Ints) -> Ordering:
    """Compare the scores of pairs whose order is known.

    A pair without both scores counts as a tie in the share, as wrong in the lower end and as right
    in the upper one: what is missing widens the interval.

    Args:
        better: (N,) scores of the work that deserves more, NaN where there is none.
        worse: (N,) scores of the other.
        problems: (N,) which problem each pair is about.

    Raises:
        ValueError: There is no pair.
    """
    if not len(problems):
        raise ValueError("no pairs: there is nothing to put in order")
    right = np.where(better > worse, 1.0, np.where(better == worse, 0.5, 0.0))
    missing = np.isnan(better) | np.isnan(worse)
    share, low, high = (np.where(missing, instead, right) for instead in (0.5, 0.0, 1.0))
    return Ordering(
        share=float(share.mean()),
        low=interval(low, problems)[0],
        high=interval(high, problems)[1],
        pairs=len(right),
        problems=len(np.unique(problems)),
        unscored=int(missing.sum()),
    )


def interval(values: Floats, clusters: Ints, level: float = LEVEL) -> tuple[float, float]:
    """Korn and Graubard's interval of a share.

    Args:
        values: (N,) in [0, 1].
        clusters: (N,) codes; values of one are alike.
        level: Of the two-sided interval.
    """
    share, count = float(values.mean()), effective_pairs(values, clusters, level)
    return clopper_pearson(share * count, (1 - share) * count, level)


def effective_pairs(values: Floats, clusters: Ints, level: float = LEVEL) -> float:
    """How many independent pairs would tell as much, at most as many as there are.

    Clusters that are all alike tell no more than one pair each: that they vary nowhere else has
    not been seen.
    """
    share, count = float(values.mean()), len(values)
    _, codes = np.unique(clusters, return_inverse=True)
    sums = np.bincount(codes, weights=values - share)
    known = len(sums)
    if known < 2:
        return 1.0
    variance = known / (known - 1) * float(sums @ sums) / count**2
    if math.isclose(variance, 0.0, abs_tol=1e-12):
        return float(known)
    quantile = (1 + level) / 2
    fewer = special.stdtrit(count - 1, quantile) / special.stdtrit(known - 1, quantile)
    return min(float(count), share * (1 - share) / variance * float(fewer) ** 2)
