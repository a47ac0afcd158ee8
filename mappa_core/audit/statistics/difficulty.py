"""How able the policy is on each problem, from how its episodes came out.

Types of task differ in difficulty, and harder work is worse whether it came out right or wrong, so
"equal work" needs more than an equal outcome. The model, for each task type t on its own, with
strata l: the level of difficulty that is stored with the problem where there is one, and the
quarter of the run in which it was first played:

    skill of problem g     z_g ~ N(m_tl, s_t^2)
    episode of it right    with probability Phi(z_g)

A problem has few episodes, so its share of right ones is a noisy measure of z_g, and a control that
is measured with noise leaves confounding behind. The regression therefore gets the *expected* skill
given the outcomes, E[z_g | outcomes, t, l], under which a slope on the true skill is estimated
without attenuation (regression calibration: Carroll, Ruppert, Stefanski & Crainiceanu, Measurement
Error in Nonlinear Models, 2nd ed. 2006, chapter 4). m_tl and s_t are estimated by EM on a grid;
their errors, which move expected skills and surprises at once, are part of each interval. Without
its level a problem would be drawn towards the mean of its whole type, and of two types, one with
more problems of a hard level, the harder would seem to be paid more. So it is with time, which the
regression holds constant too: problems may come easiest first, and the policy learns. Levels and
quarters of a type with few problems share a stratum.

    others       given the problem's other episodes: knows nothing of the action's own outcome
    surprise     own outcome less what the others led to expect: uncorrelated with them and the type
    own          given all of its episodes: for comparisons within right and within wrong ones
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats, Frame, Ints, Mask
from mappa_core.audit.statistics.layout import windows

GRID = np.linspace(-4.0, 4.0, 81)
STEPS = 60
"""Of EM; the skill's mean and spread no longer move in the third digit."""
SMALLEST_SPREAD = 0.05
_RIGHT = special.ndtr(GRID)
_LOG_RIGHT, _LOG_WRONG = special.log_ndtr(GRID), special.log_ndtr(-GRID)


@dataclass(frozen=True, slots=True)
class Expected:
    """What k episodes of which w were right say of a problem of a stratum."""

    skill: float
    """E[z | k, w], in standard deviations of the normal."""
    follows: float
    """How far that moves with the stratum's mean: Var(z | k, w) / s^2, in [0, 1]."""
    widens: float
    """How far with the logarithm of the type's spread: Cov(z, u^2 | k, w), u = (z - m) / s."""
    success: float
    """The chance that a further episode is right."""
    success_follows: float
    """How far that chance moves with the stratum's mean: Cov(Phi(z), z | k, w) / s^2."""
    success_widens: float
    """And with the logarithm of the type's spread: Cov(Phi(z), u^2 | k, w)."""


@dataclass(frozen=True, slots=True)
class Moves:
    """How far N expected values move with the mean and the spread of what they are expected by."""

    mean: Floats
    """(N,) with the mean skill of the stratum."""
    spread: Floats
    """(N,) with the logarithm of the type's spread."""

    def __getitem__(self, rows: Mask | Ints) -> "Moves":
        return Moves(self.mean[rows], self.spread[rows])

    def __mul__(self, factor: Floats) -> "Moves":
        return Moves(self.mean * factor, self.spread * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """The expected skill behind each of N actions; (N,) each."""

    others: Floats
    others_follow: Moves
    surprise: Floats
    surprise_follow: Moves
    own: Floats
    own_follow: Moves
    stratum: Ints
    """A code of task type, level and quarter."""
    kind: Ints
    """Of the task type."""
    first: Ints
    """The iteration in which the problem was first played."""
    windows: tuple[tuple[int, int], ...]
    """First and last iteration of each quarter."""
    mean_variance: Floats
    """(S,) of each stratum's estimated mean skill: 1 / sum of ((E[z] - m) / s^2)^2 of problems."""
    spread_variance: Floats
    """(K,) of the logarithm of each type's estimated spread: 1 / sum of (E[u^2] - 1)^2."""
    table: "Table"
    """By stratum, episodes and right ones: the values above, for SQL."""
    levels: "Levels"
    measured: bool
    """Whether every task type has problems with several episodes; without, difficulty is unknown
    beyond an action's own outcome."""

    def take(self, rows: Mask | Ints) -> "Difficulty":
        """Some of the actions."""
        names = ("others", "others_follow", "surprise", "surprise_follow", "own", "own_follow")
        names += ("stratum", "kind", "first")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    @property
    def variances(self) -> Floats:
        """(S + K,) of the estimated means and spreads."""
        return np.concatenate([self.mean_variance, self.spread_variance])

    def moved(self, moves: Moves) -> Floats:
        """(S + K,) sums over the actions, by what it is that moves them."""
        strata, kinds = len(self.mean_variance), len(self.spread_variance)
        means = np.bincount(self.stratum, weights=moves.mean, minlength=strata)
        spreads = np.bincount(self.kind, weights=moves.spread, minlength=kinds)
        return np.concatenate([means, spreads]).astype(np.float64)


def difficulty(frame: Frame) -> Difficulty:
    """The expected skills of a frame's actions, all of which have outcomes."""
    _, first, row = np.unique(frame.episode, return_index=True, return_inverse=True)
    row = row.astype(np.int64)
    success = frame.success[first].astype(np.int64)
    _, group = np.unique(frame.problem.codes[first], return_inverse=True)
    kind = frame.task_type.codes[first]
    played, right = np.bincount(group)[group], np.bincount(group, weights=success)[group]
    right = right.astype(np.int64)
    begun = _begun(frame.iteration[first], group)
    parts = windows(frame.iteration)
    inside = np.searchsorted([last for _, last in parts], begun)
    stratum, levels = _strata(np.stack([kind, frame.level[first], inside]), group)
    spread_variance = np.zeros(len(frame.task_type.names))
    table, mean_variance = _table(np.stack([kind, stratum, played, right]), group, spread_variance)
    own = _looked_up(table, stratum, played, right)
    others = _looked_up(table, stratum, played - 1, right - success)
    several = [np.unique(group[(kind == code) & (played > 1)]).size for code in np.unique(kind)]
    return Difficulty(
        others=others.skill[row],
        others_follow=others.moves[row],
        surprise=(success - others.success)[row],
        surprise_follow=others.surprises[row],
        own=own.skill[row],
        own_follow=own.moves[row],
        stratum=stratum[row],
        kind=kind[row],
        first=begun[row],
        windows=parts,
        mean_variance=mean_variance,
        spread_variance=spread_variance,
        table=table,
        levels=levels,
        measured=min(several, default=0) >= FEWEST_PROBLEMS,
    )


FEWEST_PROBLEMS = 3
"""Of each type, with several episodes each, that say how much problems differ."""


FEWEST_OF_A_LEVEL = 10
"""Problems of a type and level, and of its quarter, that have a mean skill of their own."""
Table: TypeAlias = dict[tuple[int, int, int], Expected]
"""By stratum, episodes and right ones."""
Levels: TypeAlias = dict[tuple[int, int, int], int]
"""The stratum of each task type, level and quarter."""


def _begun(iteration: Ints, group: Ints) -> Ints:
    """(E,) the first iteration of each episode's problem."""
    found = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(found, group, iteration)
    return found[group]


def _strata(columns: Ints, group: Ints) -> tuple[Ints, Levels]:
    """(E,) one for each level and quarter of a type that has problems enough; others share one.

    Args:
        columns: (3, E) type, level and quarter of each episode's problem.
        group: (E,) the problem.
    """
    _, first, row = np.unique(group, return_index=True, return_inverse=True)
    kind, level, window = columns[:, first]
    level = _or_rest(np.stack([kind, level]))
    window = _or_rest(np.stack([kind, level, window]))
    stratum = np.unique(np.stack([kind, level, window]), axis=1, return_inverse=True)[1].ravel()
    keys = map(tuple, columns[:, first].T.tolist())
    return stratum[row], dict(zip(keys, stratum.tolist(), strict=True))


def _or_rest(columns: Ints) -> Ints:
    """(P,) the last column, -1 where few problems have such columns."""
    _, row, counts = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    return np.where(counts[row.ravel()] < FEWEST_OF_A_LEVEL, -1, columns[-1])


def _table(columns: Ints, group: Ints, spread_variance: Floats) -> tuple[Table, Floats]:
    """What each number of episodes and right ones that occurs says, with or without one of them.

    Args:
        columns: (4, E) type, stratum, episodes and right ones of each episode's problem.
        group: (E,) the problem.
        spread_variance: (K,) filled in for the types that there are.

    Returns:
        The table, and the variance of each stratum's mean.
    """
    found: Table = {}
    _, first = np.unique(group, return_index=True)
    kind, stratum, *outcomes = columns[:, first]
    mean_variance = np.zeros(int(stratum.max()) + 1)
    for code in np.unique(kind):
        rows = kind == code
        cells, counts = np.unique(
            np.stack([stratum[rows], *(each[rows] for each in outcomes)], axis=1),
            axis=0,
            return_counts=True,
        )
        strata, places = np.unique(cells[:, 0], return_inverse=True)
        priors = _priors(places, cells[:, 1:], counts)
        for place, name in enumerate(strata.tolist()):
            said = _said(priors[place], cells[places == place, 1:])
            found |= {(name, *key): value for key, value in said.items()}
        pulls, widths = _pulls(priors[places], cells[:, 1:])
        mean_variance[strata] = 1 / np.maximum(np.bincount(places, counts * pulls**2), 1e-9)
        spread_variance[code] = 1 / max(float(counts @ widths**2), 1e-9)
    return found, mean_variance


def _pulls(priors: Floats, pairs: Ints) -> tuple[Floats, Floats]:
    """(C,) slopes of each problem's log-likelihood along its mean and its log spread, at (C, 81).

    They are E[z - m] / s^2 and E[u^2] - 1, given its outcomes.
    """
    weights = _weighted(priors, pairs[:, :1], pairs[:, 1:])
    away, spread = _away(priors)
    return (weights * away).sum(axis=1) / spread, (weights * away**2).sum(axis=1) / spread - 1


def _away(prior: Floats) -> tuple[Floats, Floats]:
    """Distances from the mean on the grid, and the squared spread; of (..., 81)."""
    away = GRID - (prior @ GRID)[..., None]
    return away, (prior * away**2).sum(axis=-1)


def _said(prior: Floats, pairs: Ints) -> dict[tuple[int, int], Expected]:
    """What episodes and right ones say of a problem of a stratum, with or without one of them."""
    away, spread = _away(prior)
    known = np.array(sorted(_with_one_less(pairs)))
    weights = _weighted(prior, known[:, :1], known[:, 1:])
    columns = np.stack(
        [*_with_moves(weights, GRID, away, spread), *_with_moves(weights, _RIGHT, away, spread)],
        axis=1,
    )
    return {
        (int(k), int(w)): Expected(*values.tolist())
        for (k, w), values in zip(known, columns, strict=True)
    }


def _with_moves(
    weights: Floats, figure: Floats, away: Floats, spread: Floats
) -> tuple[Floats, Floats, Floats]:
    """(P,) what is expected of a function of the skill, (81,), and how that moves.

    With the mean by Cov(f, z) / s^2, with the logarithm of the spread by Cov(f, u^2).
    """
    value = weights @ figure
    by_mean, by_spread = (
        (weights @ (figure * each) - value * (weights @ each)) / spread for each in (away, away**2)
    )
    return value, by_mean, by_spread


def _with_one_less(pairs: Ints) -> set[tuple[int, int]]:
    whole = {(int(k), int(w)) for k, w in pairs}
    less = {(k - 1, w - y) for k, w in whole for y in (0, 1) if 0 <= w - y <= k - 1}
    return whole | less


def _priors(places: Ints, pairs: Ints, counts: Ints) -> Floats:
    """(S, 81) skills of a type's strata on the grid, normal with one spread.

    Args:
        places: (C,) the stratum of each cell, from 0.
        pairs: (C, 2) episodes and right ones.
        counts: (C,) problems.
    """
    member = (places == np.arange(places.max() + 1)[:, None]) * counts
    sizes = member.sum(axis=1)
    shares = (member @ pairs[:, 1] + 0.5) / (member @ pairs[:, 0] + 1)
    means, spread = np.asarray(special.ndtri(shares)), 0.7
    priors = _normal(means, spread)
    for _ in range(STEPS):
        weights = member @ _weighted(priors[places], pairs[:, :1], pairs[:, 1:]) / sizes[:, None]
        means = weights @ GRID
        squares = (weights * (GRID - means[:, None]) ** 2).sum(axis=1)
        spread = max(float(sizes @ squares / sizes.sum()) ** 0.5, SMALLEST_SPREAD)
        priors = _normal(means, spread)
    return priors


def _weighted(prior: Floats, played: Ints, right: Ints) -> Floats:
    """Priors, one or (P, 81), given `right` of `played` episodes; (P, 81) from two (P, 1)."""
    log = np.log(prior) + right * _LOG_RIGHT + (played - right) * _LOG_WRONG
    weights = np.exp(log - log.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _normal(means: Floats, spread: float) -> Floats:
    """(S, 81) from (S,)."""
    density = np.exp(-0.5 * ((GRID - means[:, None]) / spread) ** 2) + 1e-300
    return density / density.sum(axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class _Columns:
    skill: Floats
    moves: Moves
    success: Floats
    surprises: Moves


def _looked_up(table: Table, stratum: Ints, played: Ints, right: Ints) -> _Columns:
    most = int(played.max(initial=0)) + 1
    keys, row = np.unique((stratum * most + played) * most + right, return_inverse=True)
    values = [table[_parts(int(key), most)] for key in keys]
    names = ("skill", "follows", "widens", "success", "success_follows", "success_widens")
    skill, follows, widens, success, rises, flattens = (
        np.array([getattr(value, name) for value in values])[row] for name in names
    )
    return _Columns(skill, Moves(follows, widens), success, Moves(-rises, -flattens))


def _parts(key: int, most: int) -> tuple[int, int, int]:
    rest, right = divmod(key, most)
    return (*divmod(rest, most), right)
