"""Do scores keep meaning what they meant? A test that may be looked at after every iteration.

A coach is gamed where its scores rise for work that does not get better. Scores and success have
no common unit, and both move as the policy does: where all work gets worse, an honest coach's
scores fall among right work, and success falls among work of one score. What an honest coach cannot
have, whichever way the policy goes, is both of these at once:

    scores of work with the same outcome rise
    success of work with the same score falls

Each is bet on by ranks: of a new score among the earlier scores of that outcome, of a new success
among the earlier ones of that score (to the whole point). While nothing changes, a rank is uniform
whatever came before (conformal by classes: Vovk, Gammerman & Shafer, Algorithmic Learning in a
Random World, 2nd ed. 2022, chapters 4 and 8), and where it goes the other way the one-sided bets
lose. The smaller of the two e-values is one against the hypothesis that either does not hold. Each
problem of an iteration is one bet, on one of its actions: others share its difficulty.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics.drift import BETS, Wealth, played, smoothed_rank

ALPHA_DIVERGENCE = 0.05
"""That any agent's scores on any task type of a run are ever falsely said to diverge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The actions of one iteration that are bet on, one of each problem; P problems."""

    iteration: int
    scores: Floats
    """(P,) in [0, 10]."""
    successes: Floats
    """(P,) 1 right, 0 wrong."""


def bet_on_calibration(rounds: Sequence[Scored], cells: int = 1, seed: int = 0) -> Wealth:
    """Bet that scores rise for equal outcomes while success falls at equal scores.

    Args:
        rounds: By iteration.
        cells: Tests that share the chance of a false alarm, e.g. one for each agent and task type.
        seed: Of the tie-breaking.
    """
    rng = np.random.default_rng(seed)
    threshold = cells / ALPHA_DIVERGENCE
    by_outcome, by_score = _Ranks(rng), _Ranks(rng)
    rise: list[Floats] = []
    fall: list[Floats] = []
    for one in rounds:
        pairs = list(zip(one.scores.tolist(), one.successes.tolist(), strict=True))
        rise.append(_growth([by_outcome.rank(right, score) for score, right in pairs]))
        fall.append(_growth([1 - by_score.rank(round(score), right) for score, right in pairs]))
    score, success = played(rise, threshold), played(fall, threshold)
    e_values = np.minimum(score.e_values, success.e_values)
    alarm = next((int(i) for i in np.flatnonzero(e_values >= threshold)), None)
    return replace(
        score, e_values=e_values, alarm=alarm, onset=None if alarm is None else score.onset
    )


class _Ranks:
    """Ranks of values among the earlier ones of their class."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._seen = defaultdict[float, list[float]](list)

    def rank(self, of_class: float, value: float) -> float:
        """The smoothed rank in [0, 1]; the first of a class tells nothing and has a half."""
        seen = self._seen[of_class]
        first, rank = not seen, smoothed_rank(seen, value, self._rng.random())
        return 0.5 if first else rank


def _growth(ranks: Sequence[float]) -> Floats:
    """(1, L) log factor of an iteration for every bet on high ranks."""
    gains = 2 * np.array(ranks) - 1
    return np.log1p(np.array(BETS)[:, None] * gains).sum(axis=1)[None]
