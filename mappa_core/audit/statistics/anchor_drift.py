"""Has the coach drifted, over all anchors or for one task type, and since when?

Each group of anchors, all of them and those of each task type, is bet on in two ways, half of the
capital each (`drift`): against their scores staying where they are known to be, and against the
mean of a scoring having any rank among the earlier ones with equal chance. The e-value that alarms
is

    E = half of that of all anchors + half of the mean over task types

which is an e-value, as any mean of e-values is, so that looking at every type takes no correction.

A type is named where the mean over every set of types that holds it reaches the threshold at some
time (closed testing with e-values: Vovk & Wang 2021, Annals of Statistics 49, section 5), so that
any type is named wrongly in at most the same share of runs, whatever the others do.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics import drift
from mappa_core.audit.statistics.drift import Wealth
from mappa_core.audit.statistics.onset import CUT, SMALLEST_VARIANCE

STEADY_ALPHA = 0.01
"""Chance that anchors whose mean moved by `STEADY_POINTS` look as if they had not moved."""
STEADY_POINTS = 0.5
FEWEST_ROUNDS = 3
"""Before and after, that can show that anchors held still."""


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """What A anchors got in T rounds."""

    known: Floats
    """(A,) the scores expected."""
    variances: Floats
    """(A,) of `known`, which is measured; 0 where a person gave it."""
    repeats: Floats
    """(A, K) the baseline scorings, NaN where there was none."""
    rounds: tuple[Floats, ...]
    """T arrays (A,) of scores in [0, 10], NaN where there was none."""
    task_types: tuple[str, ...]
    """(A,) of the anchors' problems."""

    def of(self, *task_types: str) -> "Rescored":
        """The anchors of some task types."""
        mine = np.array([kind in task_types for kind in self.task_types], dtype=bool)
        return replace(
            self,
            known=self.known[mine],
            variances=self.variances[mine],
            repeats=self.repeats[mine],
            rounds=tuple(scores[mine] for scores in self.rounds),
            task_types=tuple(kind for kind in self.task_types if kind in task_types),
        )

    @property
    def error(self) -> float:
        """Standard error of the mean of `known`, in points."""
        return float(np.sqrt(self.variances.sum())) / len(self.known)

    @cached_property
    def means(self) -> Floats:
        """(T,) of each round."""
        return round_means(self.rounds, self.known)

    @cached_property
    def earlier(self) -> Floats:
        """(K,) of each baseline scoring."""
        return round_means(self.repeats.T, self.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """When the means moved, as positions of rounds, and how far."""

    start: int
    """The round from which on they lie farthest from those before (least squares)."""
    earliest: int
    """Of the 95 % confidence set."""
    latest: int
    points: float
    """From `start` on, less before."""
    low: float
    high: float
    """Of the 95 % interval of `points`, the start taken as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorBets:
    """How the bets on the anchors went."""

    together: Wealth
    by_type: Mapping[str, Floats]
    """(T,) e-values of each task type's own anchors; empty where all are of one."""
    named: tuple[str, ...]
    """Task types that the coach is shown to score otherwise; empty before the alarm."""
    step: Step | None
    """Of the anchors of the named types, of all where none is; None before the alarm."""


def bet_on_anchors(scores: Rescored) -> AnchorBets:
    """Bet on all anchors, and on those of each task type."""
    kinds = sorted(set(scores.task_types))
    kinds = kinds if len(kinds) > 1 else []
    groups = [scores, *map(scores.of, kinds)]
    pooled, *own = [_bet(group, drift.BASELINE_ALPHA / len(groups)) for group in groups]
    measured = bool(scores.variances.any())
    threshold = 1 / (drift.ALPHA_ANCHORS - (drift.BASELINE_ALPHA if measured else 0.0))
    e_values = (pooled + np.mean(own, axis=0)) / 2 if own else pooled
    alarm = drift.first_at(e_values, threshold)
    named, found = (), None
    if alarm is not None:
        hits = _named(np.array(own), threshold)
        named = tuple(kind for kind, hit in zip(kinds, hits, strict=True) if hit)
        moved = scores.of(*named) if named else scores
        given = np.array([moved.known.mean()])
        found = step(moved.earlier if len(moved.earlier) else given, moved.means[: alarm + 1])
    onset = None if found is None else found.start
    return AnchorBets(
        together=Wealth(e_values=e_values, onset=onset, alarm=alarm, threshold=threshold),
        by_type=dict(zip(kinds, own, strict=True)),
        named=named,
        step=found,
    )


def step(earlier: Floats, means: Floats) -> Step:
    """When, and how far, the means of successive scorings moved.

    The set holds every start that fits not much worse: by `onset.CUT` in twice the log-likelihood,
    with the variance that is left around the best one.

    Args:
        earlier: (B,) means from before; may be empty.
        means: (T,) of which one is looked for that begins something new, two at least in all.
    """
    starts = np.arange(0 if len(earlier) else 1, len(means))
    sides = [(np.concatenate([earlier, means[:start]]), means[start:]) for start in starts]
    gains = np.array(
        [len(a) * len(b) / (len(a) + len(b)) * float(b.mean() - a.mean()) ** 2 for a, b in sides]
    )
    best = int(gains.argmax())
    before, after = sides[best]
    freedom = max(len(before) + len(after) - 2, 1)
    left = ((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()
    variance = max(float(left) / freedom, SMALLEST_VARIANCE)
    kept = starts[gains[best] - gains <= CUT * variance]
    points = float(after.mean() - before.mean())
    reach = float(special.stdtrit(freedom, 0.975))
    reach *= float(np.sqrt(variance * (1 / len(before) + 1 / len(after))))
    return Step(
        start=int(starts[best]),
        earliest=int(kept[0]),
        latest=int(kept[-1]),
        points=points,
        low=points - reach,
        high=points + reach,
    )


def held_still(scores: Rescored, since: int, task_types: Collection[str]) -> bool:
    """Whether the anchors of every task type are shown to have moved by less than `STEADY_POINTS`.

    Two one-sided t-tests of the rounds' means, before (baseline repeats included) and after. As all
    have to pass, it takes no correction. A task type without anchors was not shown anything.

    Args:
        scores: Of the anchors.
        since: The first round of those after.
        task_types: That there are scores of.
    """
    watched = set(scores.task_types)
    return watched >= set(task_types) and all(
        _held_still(scores.of(kind), since) for kind in sorted(watched)
    )


def _held_still(scores: Rescored, since: int) -> bool:
    before = np.concatenate([scores.earlier, scores.means[:since]])
    after = scores.means[since:]
    if min(len(before), len(after)) < FEWEST_ROUNDS:
        return False
    freedom = len(before) + len(after) - 2
    spread = ((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()
    error = float(np.sqrt(spread / freedom * (1 / len(before) + 1 / len(after))))
    room = STEADY_POINTS - abs(float(after.mean() - before.mean()))
    return room > 0 and (error == 0 or bool(special.stdtr(freedom, -room / error) <= STEADY_ALPHA))


def round_means(rounds: Sequence[Floats] | Floats, known: Floats) -> Floats:
    """(T,) the mean over the anchors of each scoring, a missing score being as it is known."""
    return np.array([np.where(np.isnan(scores), known, scores).mean() for scores in rounds])


def known_scores(repeats: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Anchors' known scores from repeated scoring before training, and how sure each is.

    Args:
        repeats: The scores of each of A anchors; a single one is known for sure.

    Returns:
        (A,) means, and (A,) the variance of each.
    """
    known = np.array([row.mean() for row in repeats])
    return known, np.array([row.var(ddof=1) / len(row) if len(row) > 1 else 0.0 for row in repeats])


def _bet(scores: Rescored, baseline_alpha: float) -> Floats:
    """(T,) e-values of one group of anchors, each way of betting with half of the capital."""
    if not scores.rounds:
        return np.zeros(0)
    moved = drift.bet(scores.rounds, scores.known, scores.error, baseline_alpha)
    means = [np.array([mean]) for mean in scores.means]
    return (moved.e_values + drift.bet_on_ranks(means, scores.earlier).e_values) / 2


def _named(e_values: Floats, threshold: float) -> list[bool]:
    """(K,) whether every set of types that holds each has a mean at the threshold at some time."""
    hits: list[bool] = []
    for place, own in enumerate(e_values):
        others = np.sort(np.delete(e_values, place, axis=0), axis=0)
        # Of the sets of one size, the one with the smallest others has the smallest mean.
        sizes = np.arange(1, len(e_values) + 1)[:, None]
        means = np.vstack([own, own + others.cumsum(axis=0)]) / sizes
        hits.append(bool((means.min(axis=0) >= threshold).any()))
    return hits
