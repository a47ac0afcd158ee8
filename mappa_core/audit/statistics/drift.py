"""Has the coach drifted? A test that may be looked at after every iteration.

Anchors are fixed actions with known scores that are scored again each iteration. The null: at no
call is the expected score more than a tolerance away from the known one. A gambler bets against
it, and under the null her wealth is a non-negative supermartingale, so by Ville's inequality it
ever reaches 1/alpha with probability alpha at most, whenever one looks (betting on bounded means:
Waudby-Smith & Ramdas, arXiv 2010.09686; sequential tests by betting: Shekhar & Ramdas,
arXiv 2112.09162).

    M_t = (M_(t-1) + w_t) * prod over anchors of (1 + l * (sign * (s - known) - tolerance))
    E_t = mean over bets l and both signs of M_t, plus the capital not yet laid, 1 / (t + 1)

The known scores are measured themselves, which the tolerance has to allow for. A second gambler
needs none of it: while nothing changes, the mean over the anchors of one scoring, baseline repeats
included, has every rank among the earlier ones with equal chance (`bet_on_ranks`). Each plays with
half of the capital: the first finds a drift from the first iteration on, the second a small one.

`w_t` = 1 / (t (t + 1)) is the share of the capital that enters at iteration t, so that a drift
that sets in late is not paid for with what was lost before (a mixture over start times is an
e-process again). The bets are a fixed grid (ibid., section B.3), so the whole is a function of the
stored scores and can be computed again from SQL.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats

ALPHA_ANCHORS = 0.04
ALPHA_STREAM = 0.01
"""Together 5 %, that any alarm is false at any time."""
MOST = 690.0
"""Log of the largest e-value written down; more is not more convincing, and overflows."""
TOLERANCE_POINTS = 0.25
"""A coach this close to its known scores has not drifted."""
BETS = (0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the largest bet that cannot go bankrupt."""
POWER_BET = 0.5
"""Exponent of a bet on extreme ranks: k (1 - p)^(k - 1), which grows without bound as p nears 1."""
SMALLEST_RANK = 1e-9
"""A rank closer to the end is bet on as if it were this."""
BASELINE_ALPHA = 0.001
"""Chance that the known scores, themselves measured, are off by more than what is added for it."""

Doubt: TypeAlias = Literal["coach or policy", "policy or order"]
Cause: TypeAlias = Literal["coach", "policy", "rubric", "none"] | Doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class Wealth:
    """How the bets went; (T,) after each iteration."""

    e_values: Floats
    onset: int | None
    """0-based position from which something was different; None before the alarm."""
    alarm: int | None
    """0-based position of the first e-value at the threshold."""
    threshold: float

    @property
    def alarmed(self) -> bool:
        """Whether the null was refused at any time."""
        return self.alarm is not None


def bet(
    rounds: Sequence[Floats],
    known: Floats,
    baseline_error: float = 0.0,
    baseline_alpha: float = BASELINE_ALPHA,
) -> Wealth:
    """Bet against the anchors' scores staying where they were.

    Args:
        rounds: T arrays (A,) of scores in [0, 10], NaN where there was none.
        known: (A,) the scores expected.
        baseline_error: Standard error of the mean of `known`, in points; 0 where it is given.
        baseline_alpha: Chance that they are off by more than what is added for it.

    Returns:
        E-values; refuse at 1/alpha, with the part of alpha kept for the baseline taken off.
    """
    measured = baseline_error > 0
    reach = float(special.ndtri(1 - baseline_alpha / 2)) if measured else 0.0
    tolerance = (TOLERANCE_POINTS + reach * baseline_error) / 10
    growth = [log_growth(scores, known, tolerance) for scores in rounds]
    return played(growth, 1 / (ALPHA_ANCHORS - (baseline_alpha if measured else 0.0)))


def bet_on_stream(rounds: Sequence[Floats], seed: int = 0) -> Wealth:
    """Bet against the scores of T iterations, e.g. problems' means, being exchangeable."""
    return bet_on_ranks(rounds, np.zeros(0), seed)


def bet_on_ranks(rounds: Sequence[Floats], earlier: Floats, seed: int = 0) -> Wealth:
    """Bet against values being exchangeable.

    Each value's rank among all earlier ones is uniform under the null, ties broken at random, and
    ranks of successive values are independent (conformal test martingales: Vovk, Gammerman &
    Shafer, Algorithmic Learning in a Random World, 2nd ed. 2022, chapter 8). The bets are
    1 + l * sign * (2 p - 1), and one on extreme ranks, k (1 - p)^(k - 1) and k p^(k - 1).

    Args:
        rounds: T arrays of values.
        earlier: (B,) values that came before and are not bet on.
        seed: Of the tie-breaking.
    """
    rng = np.random.default_rng(seed)
    seen = sorted(float(value) for value in earlier[~np.isnan(earlier)])
    growth = [
        _rank_growth([(seen, float(score)) for score in scores[~np.isnan(scores)]], rng)
        for scores in rounds
    ]
    return played(growth, 1 / ALPHA_STREAM)


def bet_on_own_ranks(
    rounds: Sequence[Floats], problems: Sequence[Sequence[str]], seed: int = 0
) -> Wealth:
    """Bet against each problem's scores being exchangeable over its visits.

    As `bet_on_ranks`, but among the earlier scores of the same problem, so that it does not matter
    in which order problems come. A first visit is not bet on.

    Args:
        rounds: T arrays (P,) of scores.
        problems: The P problems of each round, all different.
        seed: Of the tie-breaking.
    """
    rng = np.random.default_rng(seed)
    seen: dict[str, list[float]] = {}
    growth: list[Floats] = []
    for scores, names in zip(rounds, problems, strict=True):
        found = dict(zip(names, scores.tolist(), strict=True))
        again = [(seen[name], score) for name, score in found.items() if name in seen]
        growth.append(_rank_growth(again, rng))
        seen |= {name: [score] for name, score in found.items() if name not in seen}
    return played(growth, 1 / ALPHA_STREAM)


def _rank_growth(scores: Sequence[tuple[list[float], float]], rng: np.random.Generator) -> Floats:
    """Log factor of some scores' ranks, each among the values that it joins; (2, L)."""
    log = np.zeros((2, len(BETS) + 1))
    for seen, score in scores:
        rank = smoothed_rank(seen, score, rng.random())
        log += np.stack([_on_a_high(rank), _on_a_high(1 - rank)])
    return log


def _on_a_high(rank: float) -> Floats:
    """(L,) log factors of the bets that a rank in [0, 1] is high; each is 0 on average or less."""
    power = np.log(POWER_BET) + (POWER_BET - 1) * np.log(max(1 - rank, SMALLEST_RANK))
    return np.append(np.log1p(np.array(BETS) * (2 * rank - 1)), power)


def smoothed_rank(seen: list[float], score: float, tie: float) -> float:
    """Smoothed rank in [0, 1] of a new value among those seen, which it then joins."""
    below, upto = bisect_left(seen, score), bisect_right(seen, score)
    seen.insert(below, score)
    return (below + tie * (upto - below + 1)) / len(seen)


def played(growth: Sequence[Floats], threshold: float) -> Wealth:
    """Lay the capital in shares, let it grow, look after every iteration.

    Args:
        growth: T arrays of one shape, the log factor of each bet in an iteration.
        threshold: Of the e-value, for an alarm.
    """
    capital = np.full_like(growth[0], -np.inf) if len(growth) else np.zeros(0)
    e_values = np.empty(len(growth))
    for position, log in enumerate(growth):
        laid = -np.log((position + 1.0) * (position + 2.0))
        capital = np.logaddexp(capital, laid) + log
        e_values[position] = np.exp(np.minimum(capital, MOST)).mean() + 1 / (position + 2)
    alarm = first_at(e_values, threshold)
    onset = None if alarm is None else _best_start(np.array(growth[: alarm + 1]))
    return Wealth(e_values=e_values, onset=onset, alarm=alarm, threshold=threshold)


def attribute(
    anchors: Wealth,
    stream: Wealth,
    rubric_changes: Sequence[int] = (),
    slack: int = 1,
    *,
    still: bool = False,
    own: bool = False,
) -> Cause:
    """Who changed.

    Anchors are the same actions all along: where they moved, the coach did, or its rubric where
    that changed at the same time. Where only the stream of new scores moved, no coach did if the
    anchors of every task type are shown to have held still; silence shows nothing. It was the
    policy if the same problems get other scores than before, and else perhaps the order in which
    problems come.

    Args:
        anchors: Bets on the anchors.
        stream: Bets on the scores of what the policies did.
        rubric_changes: 0-based positions at which the rubric's hash changed.
        slack: Iterations by which the onset may be misjudged.
        still: Whether `anchor_drift.held_still` for every task type, since the stream moved.
        own: Whether problems' own scores moved (`bet_on_own_ranks`).
    """
    if anchors.alarmed:
        onset = anchors.onset if anchors.onset is not None else anchors.alarm
        assert onset is not None
        near = any(abs(onset - change) <= slack for change in rubric_changes)
        return "rubric" if near else "coach"
    if not stream.alarmed:
        return "none"
    if not still:
        return "coach or policy"
    return "policy" if own else "policy or order"


def first_at(e_values: Floats, threshold: float) -> int | None:
    """The position of the first e-value at the threshold; None where there is none."""
    return next((int(i) for i in np.flatnonzero(e_values >= threshold)), None)


def log_growth(scores: Floats, known: Floats, tolerance: float) -> Floats:
    """Log factor of one iteration for both signs and every bet; (2, L)."""
    there = ~np.isnan(scores)
    moved, expected = (scores[there] - known[there]) / 10, known[there] / 10
    # The worst a bet can meet is the score falling to 0 (or rising to 10), less the tolerance.
    most = np.stack([1 / (expected + tolerance), 1 / (1 - expected + tolerance)])
    gains = np.stack([moved - tolerance, -moved - tolerance])
    bets = np.array(BETS)[:, None, None]
    return np.log1p(bets * most * gains).sum(axis=2).T


def _best_start(growth: Floats) -> int:
    """The iteration at which the bets that won were best begun."""
    remaining = growth[::-1].cumsum(axis=0)[::-1].reshape(len(growth), -1)
    return int(np.unravel_index(np.argmax(remaining), remaining.shape)[0])
