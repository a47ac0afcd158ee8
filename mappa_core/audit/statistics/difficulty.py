"""How able the policy is on each problem, from how its episodes came out.

Types of task differ in difficulty, and harder work is worse whether it came out right or wrong, so
"equal work" needs more than an equal outcome. The model, for each task type t on its own:

    skill of problem g     z_g ~ N(m_t, s_t^2)
    episode of it right    with probability Phi(z_g)

A problem has few episodes, so its share of right ones is a noisy measure of z_g, and a control that
is measured with noise leaves confounding behind. The regression therefore gets the *expected* skill
given the outcomes, E[z_g | outcomes, t], under which a slope on the true skill is estimated without
attenuation (regression calibration: Carroll, Ruppert, Stefanski & Crainiceanu, Measurement Error in
Nonlinear Models, 2nd ed. 2006, chapter 4). m_t and s_t are estimated by EM on a grid.

    others       given the problem's other episodes: knows nothing of the action's own outcome
    surprise     own outcome less what the others led to expect: uncorrelated with them and the type
    own          given all of its episodes: for comparisons within right and within wrong ones
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy import stats

from mappa_core.audit.frame import Floats, Frame, Ints, Mask

GRID = np.linspace(-4.0, 4.0, 81)
STEPS = 60
"""Of EM; the skill's mean and spread no longer move in the third digit."""
SMALLEST_SPREAD = 0.05
_RIGHT = stats.norm.cdf(GRID)
_LOG_RIGHT, _LOG_WRONG = stats.norm.logcdf(GRID), stats.norm.logcdf(-GRID)


@dataclass(frozen=True, slots=True)
class Expected:
    """What k episodes of which w were right say of a problem of a task type."""

    skill: float
    """E[z | k, w], in standard deviations of the normal."""
    follows: float
    """How far that moves with the type's mean: Var(z | k, w) / s^2, in [0, 1]."""
    variance: float
    """Var(z | k, w)."""
    success: float
    """The chance that a further episode is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """The expected skill behind each of N actions; (N,) each."""

    others: Floats
    others_follow: Floats
    """How far `others` moves with its type's mean, in [0, 1]."""
    surprise: Floats
    own: Floats
    own_follow: Floats
    own_variance: Floats
    """Of the skill, given all of the problem's episodes."""
    mean_variance: dict[int, float]
    """Of each task type's estimated mean skill: 1 / sum over problems of ((E[z] - m) / s^2)^2."""
    table: "Table"
    """By task type, episodes and right ones: the values above, for SQL."""
    measured: bool
    """Whether every task type has problems with several episodes; without, difficulty is unknown
    beyond an action's own outcome."""

    def take(self, rows: Mask) -> "Difficulty":
        """Some of the actions."""
        names = ("others", "others_follow", "surprise", "own", "own_follow", "own_variance")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def difficulty(frame: Frame) -> Difficulty:
    """The expected skills of a frame's actions, all of which have outcomes."""
    _, first, row = np.unique(frame.episode, return_index=True, return_inverse=True)
    success = frame.success[first].astype(np.int64)
    _, group = np.unique(frame.problem.codes[first], return_inverse=True)
    kind = frame.task_type.codes[first]
    played, right = np.bincount(group)[group], np.bincount(group, weights=success)[group]
    right = right.astype(np.int64)
    table, mean_variance = _table(kind, played, right, group)
    own = _looked_up(table, kind, played, right)
    others = _looked_up(table, kind, played - 1, right - success)
    several = [np.unique(group[(kind == code) & (played > 1)]).size for code in np.unique(kind)]
    return Difficulty(
        others=others.skill[row],
        others_follow=others.follows[row],
        surprise=(success - others.success)[row],
        own=own.skill[row],
        own_follow=own.follows[row],
        own_variance=own.variance[row],
        mean_variance=mean_variance,
        table=table,
        measured=min(several, default=0) >= FEWEST_PROBLEMS,
    )


FEWEST_PROBLEMS = 3
"""Of each type, with several episodes each, that say how much problems differ."""


Table: TypeAlias = dict[tuple[int, int, int], Expected]
"""By task type, episodes and right ones."""


def _table(kind: Ints, played: Ints, right: Ints, group: Ints) -> tuple[Table, dict[int, float]]:
    """What each number of episodes and right ones that occurs says, with or without one of them."""
    found: Table = {}
    mean_variance: dict[int, float] = {}
    _, first = np.unique(group, return_index=True)
    for code in map(int, np.unique(kind)):
        rows = first[kind[first] == code]
        pairs, counts = np.unique(
            np.stack([played[rows], right[rows]], axis=1), axis=0, return_counts=True
        )
        prior = _prior(pairs, counts)
        mean = float(prior @ GRID)
        spread = float(prior @ (GRID - mean) ** 2)
        known = np.array(sorted(_with_one_less(pairs)))
        weights = _weighted(prior, known[:, :1], known[:, 1:])
        skill, success = weights @ GRID, weights @ _RIGHT
        variance = weights @ GRID**2 - skill**2
        columns = np.stack([skill, variance / spread, variance, success], axis=1)
        for (k, w), values in zip(known, columns, strict=True):
            found[code, int(k), int(w)] = Expected(*values.tolist())
        pulls = np.array([found[code, int(k), int(w)].skill - mean for k, w in pairs]) / spread
        mean_variance[code] = 1 / max(float(counts @ pulls**2), 1e-9)
    return found, mean_variance


def _with_one_less(pairs: Ints) -> set[tuple[int, int]]:
    whole = {(int(k), int(w)) for k, w in pairs}
    less = {(k - 1, w - y) for k, w in whole for y in (0, 1) if 0 <= w - y <= k - 1}
    return whole | less


def _prior(pairs: Ints, counts: Ints) -> Floats:
    """(81,) the distribution of a type's skills on the grid: normal, by EM."""
    share = float((counts * pairs[:, 1]).sum() + 0.5) / float((counts * pairs[:, 0]).sum() + 1)
    mean, spread = float(stats.norm.ppf(share)), 0.7
    prior = _normal(mean, spread)
    for _ in range(STEPS):
        weights = counts @ _weighted(prior, pairs[:, :1], pairs[:, 1:]) / counts.sum()
        mean = float(weights @ GRID)
        spread = max(float(weights @ (GRID - mean) ** 2) ** 0.5, SMALLEST_SPREAD)
        prior = _normal(mean, spread)
    return prior


def _weighted(prior: Floats, played: Ints, right: Ints) -> Floats:
    """The prior given `right` of `played` episodes; (P, 81) from two (P, 1)."""
    log = np.log(prior) + right * _LOG_RIGHT + (played - right) * _LOG_WRONG
    weights = np.exp(log - log.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _normal(mean: float, spread: float) -> Floats:
    density = np.exp(-0.5 * ((GRID - mean) / spread) ** 2) + 1e-300
    return density / density.sum()


@dataclass(frozen=True, slots=True)
class _Columns:
    skill: Floats
    follows: Floats
    variance: Floats
    success: Floats


def _looked_up(table: Table, kind: Ints, played: Ints, right: Ints) -> _Columns:
    most = int(played.max(initial=0)) + 1
    keys, row = np.unique((kind * most + played) * most + right, return_inverse=True)
    values = [table[_parts(int(key), most)] for key in keys]
    names = ("skill", "follows", "variance", "success")
    return _Columns(*(np.array([getattr(value, name) for value in values])[row] for name in names))


def _parts(key: int, most: int) -> tuple[int, int, int]:
    rest, right = divmod(key, most)
    return (*divmod(rest, most), right)
