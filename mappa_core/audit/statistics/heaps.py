"""What a coach whose scores are whole, half or favourite points shows of a bias.

Half a point more is seldom given where scores are 0, 5, 7 or 10, but is sometimes two or three; and
where a coach that gives all whole points is often drawn to a favourite, less than half a point
shows. What the coach felt is drawn from what it gave (data augmentation, Tanner & Wong 1987):

    level of an action   normal, with a mean and a spread of its agent's own
    felt                 normal around the level, with a deviation of the agent's own
    given                the usual score that is nearest, or, by chance, the nearest favourite

A bias moves what is felt, and shows where that crosses the end of a cell of nearest scores.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from mappa_core.audit.frame import Floats, Ints, Mask
from mappa_core.audit.statistics.health import HIGHEST

USUAL, NEAR_POINTS = 0.02, 2.0
"""Share of the scorings within so many points that makes a score a usual one: a few 9s are the tail
of a coach that gives all whole points, and as few 6s between many 5s and 7s are slips."""
MOST = 0.9
"""Share of the scorings that have such a score, if the coach has any."""
FAVOURED = 1.15
"""As many times as a coach without favourites would give it, or more, a favourite is given."""
ERRORS = 3.0
"""Standard errors by which that is more than chance."""
FINEST = 101
"""Values that a coach gives at most, if it has favourites: tenths of a point."""
ENDS, END_ERRORS = (0.0, HIGHEST), 1.0
"""The scale's ends, and the standard errors that are enough for one: a coach with favourites is
likely to have them, and few actions may deserve them."""
WARM_UP = 50
LOOKED = 10
"""Draws by which favourites are looked for."""
PRIOR = 4
"""Scores that the guess of a variance, a quarter, counts as."""


def usual_scores(scores: Floats) -> Floats:
    """The scores that a coach is used to give, or all that it gave; and the highest."""
    values, counts = np.unique(scores, return_counts=True)
    upto = np.concatenate([[0], counts.cumsum()])
    first = np.searchsorted(values, values - NEAR_POINTS)
    after = np.searchsorted(values, values + NEAR_POINTS, side="right")
    often = counts >= USUAL * (upto[after] - upto[first])
    kept = values[often] if counts[often].sum() >= MOST * len(scores) else values
    return np.union1d(kept, [HIGHEST])


@dataclass(frozen=True, kw_only=True)
class Scorings:
    """M scores, none missing; codes from 0."""

    scores: Floats
    actions: Ints
    agents: Ints


def shown(
    given: Scorings, points: float, rng: np.random.Generator, draws: int
) -> tuple[Floats, Floats]:
    """(M, draws) what so many points more add to each score, as far as the scale goes; without.

    Args:
        given: What a coach gave that does not have the bias.
        points: Of the bias.
        rng: Of what was felt.
        draws: How often that is drawn.
    """
    plain = _Cells.of(usual_scores(given.scores), given.scores)
    heaps = _heaps(given, plain, rng)
    drawn = list(_felt(given, plain, heaps, rng, draws))
    felt = np.array([each.felt for each in drawn]).T
    pulled = np.array([each.pulled for each in drawn]).T
    own, drawn_to = plain.moved(felt, points), (heaps or plain).moved(felt, points)
    ended, endless = (np.where(pulled, *each) for each in zip(drawn_to, own, strict=True))
    return ended, endless


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """What is felt between two ends is given as one score, the nearest."""

    values: Floats
    """(V,) ascending."""
    ends: Floats
    """(V - 1,) between them."""
    cell: Ints
    """(M,) where each score is."""

    @classmethod
    def of(cls, values: Floats, scores: Floats) -> "_Cells":
        ends = (values[1:] + values[:-1]) / 2
        return cls(values=values, ends=ends, cell=np.searchsorted(ends, scores))

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """(M,) ends of each score's cell."""
        ends = np.concatenate([[-np.inf], self.ends, [np.inf]])
        return ends[self.cell], ends[self.cell + 1]

    def chances(self, own: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """(M,) of less than each score's cell, and of no more."""
        low, high = self.bounds
        return ndtr((low - own) / deviation), ndtr((high - own) / deviation)

    def expected(self, own: Floats, deviation: Floats) -> Floats:
        """(V,) how often each score would be given of what is felt around `own`."""
        ends = np.concatenate([[-np.inf], self.ends, [np.inf]])
        return np.diff(ndtr((ends[:, None] - own) / deviation), axis=0).sum(axis=1)

    def moved(self, felt: Floats, points: float) -> tuple[Floats, Floats]:
        """(M, S) what is given more where that much more is felt; and if the scale had no end."""
        raised = np.searchsorted(self.ends, felt + points)
        jumps = self.values[raised] - self.values[self.cell][:, None]
        if not len(self.ends):
            return jumps, np.full_like(jumps, points)
        # Beyond the ends that the outermost cells would have.
        above = felt + points > 2 * self.values[-1] - self.ends[-1]
        below = (felt < 2 * self.values[0] - self.ends[0]) & (self.values[0] <= 0)
        return jumps, np.where(above | below, points, jumps)


@dataclass(frozen=True, kw_only=True)
class _Felt:
    """One draw of what a coach felt; (M,) each."""

    felt: Floats
    pulled: Mask
    """To a favourite."""
    level: Floats
    deviation: Floats
    share: float
    """Of the scores that are pulled."""


def _heaps(given: Scorings, plain: _Cells, rng: np.random.Generator) -> _Cells | None:
    """The favourites: scores that are given more often than what is felt explains.

    The clearest two come first, and each further one is looked for beside those: until they are
    known, a score from which they draw away can look like one.
    """
    often = np.bincount(plain.cell, minlength=len(plain.values))
    found: list[int] = []
    while len(found) < len(often) <= FINEST:
        heaps = _Cells.of(np.sort(plain.values[found]), given.scores) if found else None
        drawn = _felt(given, plain, heaps, rng, LOOKED)
        expected = np.mean(
            [(1 - d.share) * plain.expected(d.level, d.deviation) for d in drawn], axis=0
        )
        more, wanted = often - expected, 1 if found else 2
        errors = more / np.sqrt(expected + 1)
        at_an_end = np.isin(plain.values, ENDS) & bool(found)
        enough = np.where(at_an_end, END_ERRORS, ERRORS)
        clear = (more > (FAVOURED - 1) * expected) & (errors > enough)
        clear[found] = False
        if clear.sum() < wanted:
            return heaps
        found += np.argsort(np.where(clear, errors, 0.0))[-wanted:].tolist()
    return None


def _felt(
    given: Scorings, plain: _Cells, heaps: _Cells | None, rng: np.random.Generator, draws: int
) -> Iterator[_Felt]:
    """Yield what was felt, draw by draw of a Gibbs sampler."""
    levels, felt = _Levels(given), given.scores
    drawn_to = heaps or plain
    favourite = np.isin(plain.values[plain.cell], drawn_to.values) & (heaps is not None)
    share = 0.0 if heaps is None else 0.2
    for step in range(WARM_UP + draws):
        level, deviation = levels.drawn(felt, rng)
        low, high = plain.chances(level, deviation)
        other_low, other_high = drawn_to.chances(level, deviation)
        by_pull, by_own = share * (other_high - other_low), (1 - share) * (high - low)
        pulled = favourite & (rng.random(len(felt)) * (by_pull + by_own) < by_pull)
        if heaps is not None:
            share = float(rng.beta(1 + pulled.sum(), 1 + (~pulled).sum()))
        low, high = np.where(pulled, other_low, low), np.where(pulled, other_high, high)
        bounds = [
            np.where(pulled, *each) for each in zip(drawn_to.bounds, plain.bounds, strict=True)
        ]
        uniform = (low + rng.random(len(felt)) * (high - low)).clip(1e-12, 1 - 1e-12)
        felt = (level + deviation * ndtri(uniform)).clip(*bounds)
        if step >= WARM_UP:
            yield _Felt(felt=felt, pulled=pulled, level=level, deviation=deviation, share=share)


class _Levels:
    """Draws each action's level, and its agent's mean, spread and deviation."""

    def __init__(self, given: Scorings) -> None:
        self._given = given
        self._times = np.bincount(given.actions)
        self._agent = np.zeros(len(self._times), dtype=np.int64)
        self._agent[given.actions] = given.agents
        self._actions = np.bincount(self._agent)
        self._scores = np.bincount(given.agents)
        self._centre = np.bincount(given.agents, given.scores) / self._scores
        self._spread = np.full(len(self._scores), 1.0 + float(given.scores.var()))
        self._level = self._centre[self._agent]
        self._variance = np.ones(len(self._scores))
        self._started = False

    def drawn(self, felt: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """(M,) the level of each scoring's action, and the deviation around it."""
        given, agent = self._given, self._agent
        if self._started:
            left = felt - self._level[given.actions]
            self._variance = _variances(left, given.agents, self._scores, rng)
        self._started = True
        variance, spread = self._variance[agent], self._spread[agent]
        weight = self._times / variance + 1 / spread
        sums = np.bincount(given.actions, felt) / variance + self._centre[agent] / spread
        self._level = sums / weight + rng.normal(size=len(agent)) / np.sqrt(weight)
        mean = np.bincount(agent, self._level) / self._actions
        self._centre = rng.normal(mean, np.sqrt(self._spread / self._actions))
        self._spread = _variances(self._level - self._centre[agent], agent, self._actions, rng)
        return self._level[given.actions], np.sqrt(self._variance)[given.agents]


def _variances(left: Floats, group: Ints, counts: Ints, rng: np.random.Generator) -> Floats:
    """(G,) a draw of the variance of each group's normal errors."""
    return (np.bincount(group, left**2) + PRIOR / 4) / rng.chisquare(counts + PRIOR)
