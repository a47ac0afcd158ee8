"""What a coach whose scores are whole, half or favourite points shows of a bias.

Half a point more is seldom given where scores are 0, 5, 7 or 10, but is sometimes two or three.
What the coach felt is drawn from what it gave (data augmentation, Tanner & Wong 1987): normal
around each action's own level, between the ends of the given score's cell. A bias moves what is
felt, and shows where that crosses the end of a cell.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri

from mappa_core.audit.frame import Floats, Ints
from mappa_core.audit.statistics.health import HIGHEST

USUAL = 0.02
"""Share of the scorings that makes a score one that a coach is used to give."""
MOST = 0.9
"""Share of the scorings that have such a score, if the coach has any."""
NEAR = 1.0
"""Points between neighbouring scores up to which a bias shows as it is."""
WARM_UP = 50
PRIOR = 4
"""Scores that the guess of a variance, a quarter, counts as."""


def usual_scores(scores: Floats) -> Floats:
    """The scores that a coach gives more than seldom, or all that it gave; and the highest."""
    values, counts = np.unique(scores, return_counts=True)
    often = counts >= USUAL * len(scores)
    kept = values[often] if counts[often].sum() >= MOST * len(scores) else values
    return np.union1d(kept, [HIGHEST])


def shown(
    scores: Floats, actions: Ints, points: float, rng: np.random.Generator, draws: int
) -> tuple[Floats, Floats]:
    """(n, draws) what so many points more add to each score, as far as the scale goes; without.

    Args:
        scores: (n,) none missing.
        actions: (n,) codes from 0.
        points: Of the bias.
        rng: Of what was felt.
        draws: How often that is drawn.
    """
    usual = usual_scores(scores)
    ends = (usual[1:] + usual[:-1]) / 2
    cell = np.searchsorted(ends, scores)
    bounds = np.concatenate([[-np.inf], ends, [np.inf]])
    felt = np.array(list(_felt(scores, actions, (bounds[cell], bounds[cell + 1]), rng, draws))).T
    raised = np.searchsorted(ends, felt + points)
    jumps = usual[raised] - usual[cell][:, None]
    beyond = np.where(raised == len(ends), np.maximum(jumps, points), jumps)
    # Where the next score is near, it moves by the points on average, heaped or not.
    near = (np.append(np.diff(usual), 0.0)[cell] <= NEAR)[:, None]
    room = np.minimum(points, HIGHEST - scores)[:, None]
    return np.where(near, room, jumps), np.where(near, points, beyond)


def _felt(
    scores: Floats,
    actions: Ints,
    bounds: tuple[Floats, Floats],
    rng: np.random.Generator,
    draws: int,
) -> Iterator[Floats]:
    """Yield what was felt, draw by draw of a Gibbs sampler."""
    low, high = bounds
    times = np.bincount(actions)
    felt = scores
    variance, spread, centre = 1.0, 1.0 + float(scores.var()), float(scores.mean())
    for step in range(WARM_UP + draws):
        weight = times / variance + 1 / spread
        level = (np.bincount(actions, felt) / variance + centre / spread) / weight
        level = level + rng.normal(size=len(times)) / np.sqrt(weight)
        centre = float(rng.normal(level.mean(), np.sqrt(spread / len(times))))
        spread = _variance(level - centre, rng)
        deviation = np.sqrt(variance)
        own = level[actions]
        below, above = ndtr((low - own) / deviation), ndtr((high - own) / deviation)
        uniform = below + rng.random(len(own)) * (above - below)
        felt = (own + deviation * ndtri(uniform.clip(1e-12, 1 - 1e-12))).clip(low, high)
        variance = _variance(felt - own, rng)
        if step >= WARM_UP:
            yield felt


def _variance(errors: Floats, rng: np.random.Generator) -> float:
    """A draw of the variance of normal errors."""
    return float(((errors**2).sum() + PRIOR / 4) / rng.chisquare(len(errors) + PRIOR))
