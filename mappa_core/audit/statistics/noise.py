"""How much of a score is the coach's mood: repeats of the same actions.

One-way random effects: score = action's worth + noise. ICC(1) is Shrout & Fleiss's (1979); its
interval is not, for that takes actions as drawn, and those on one problem are alike. The repeats
recommended follow from the Spearman-Brown formula.
"""

import math
from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Floats, Ints
from mappa_core.audit.statistics.jackknife import FEWEST_PROBLEMS, reach

WANTED_RELIABILITY = 0.9
MOST_REPEATS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What repeats say about a coach."""

    within_deviation: float
    """Points between two scorings of one action are this times the root of 2, typically."""
    reliability: float
    """ICC(1): the share of a score's variance that is the action's; below 0 it is all noise."""
    low: float | None
    high: float | None
    """95 % interval of the reliability on further problems; None below three of them."""
    flips: float
    """Share of pairs of different actions whose order changes from one scoring to the next."""
    repeats: int | None
    """K whose mean reaches a reliability of 0.9; None where 64 do not."""
    actions: int


def noise(table: Floats, problems: Ints | None = None) -> Noise | None:
    """Describe repeated scores; None below two actions with a full set of repeats.

    Args:
        table: (A, K) scores of A actions, K times each; incomplete rows are left out.
        problems: (A,) codes; without them there is no interval.
    """
    whole = ~np.isnan(table).any(axis=1) if table.size else np.zeros(len(table), dtype=bool)
    table = table[whole] if table.size else table
    if table.ndim != 2 or len(table) < 2 or table.shape[1] < 2:
        return None
    actions, repeats = table.shape
    between = repeats * float(table.mean(axis=1).var(ddof=1))
    within = float(table.var(axis=1, ddof=1).mean())
    low, high = (None, None) if problems is None else _interval(table, problems[whole])
    reliability = _icc(between, within, repeats)
    return Noise(
        within_deviation=within**0.5,
        reliability=reliability,
        low=low,
        high=high,
        flips=_flips(table),
        repeats=_recommended(reliability),
        actions=actions,
    )


def _icc(between: float, within: float, repeats: int) -> float:
    """(MSB - MSW) / (MSB + (K - 1) MSW); 0 where nothing varies."""
    total = between + (repeats - 1) * within
    return (between - within) / total if total > 0 else 0.0


def _interval(table: Floats, problems: Ints) -> tuple[float, float] | tuple[None, None]:
    """That of log(MSB / MSW), jackknifed over problems.

    Where no score differs from another of its action, it is as if two of one further action did by
    a point.
    """
    codes = np.unique(problems, return_inverse=True)[1]
    if len(codes) == 0 or int(codes.max()) + 1 < FEWEST_PROBLEMS:
        return None, None
    repeats, means, within = table.shape[1], table.mean(axis=1), table.var(axis=1, ddof=1)
    columns = (np.ones(len(codes)), means, means**2, within)
    sums = np.column_stack([np.bincount(codes, weights=column) for column in columns]).astype(
        np.float64
    )
    whole = sums.sum(axis=0)
    if not within.any():
        whole[3] += 0.5
        return _icc(float(np.exp(_odds(whole, repeats))), 1.0, repeats), 1.0
    middle = float(_odds(whole, repeats))
    end = reach(_odds(whole - sums, repeats), sums[:, 0])
    low, high = (float(np.exp(middle + each)) for each in (-end, end))
    return _icc(low, 1.0, repeats), _icc(high, 1.0, repeats)


def _odds(sums: Floats, repeats: int) -> Floats:
    """log(MSB / MSW) of (..., 4) sums over actions: 1, mean, mean^2, variance within."""
    actions, total, squares, within = np.moveaxis(sums, -1, 0)
    between = repeats * (squares - total**2 / actions) / np.maximum(actions - 1, 1)
    return np.log(np.maximum(between, 1e-9) / np.maximum(within / actions, 1e-9))


def _flips(table: Floats) -> float:
    """Over all pairs of actions and neighbouring repeats, how often the better one changes."""
    first, second = np.triu_indices(len(table), 1)
    if len(first) > MOST_PAIRS:
        chosen = np.random.default_rng(0).choice(len(first), MOST_PAIRS, replace=False)
        first, second = first[chosen], second[chosen]
    order = np.sign(table[first] - table[second])
    before, after = order[:, :-1], order[:, 1:]
    return float((before * after < 0).mean())


MOST_PAIRS = 100_000


def _recommended(reliability: float) -> int | None:
    """K with K r / (1 + (K - 1) r) >= 0.9."""
    if reliability <= 0:
        return None
    odds = WANTED_RELIABILITY / (1 - WANTED_RELIABILITY)
    needed = math.ceil(odds * (1 - reliability) / reliability - 1e-9)
    return max(needed, 1) if needed <= MOST_REPEATS else None
