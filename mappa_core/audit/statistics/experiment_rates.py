"""How often an experiment like this one is wrong: its own answers, dealt anew.

To a coach that a change does not move, the scorings of one action under all changes are alike: any
order of them was as probable as the one there is. So an honest coach is this one with each action's
scores dealt out at random, once what the changes seem to be worth is taken off; its noise, heaps,
ceiling, missing scores and problems stay as they are, and nothing is modelled. A biased one feels
more wherever the work is called by one type, and gives what it shows of that (`heaps`, which
models what is felt). Scores at the end of the scale hide how much shows: it is counted as far as
the scale goes and as if it had no end, and where the two differ, the rate is `Unknowable`. So it is
where a name makes scores go missing, as those that a bias moves are lost or found by it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit.frame import Experiment, Floats, Ints, Mask
from mappa_core.audit.statistics.counting import LEVEL, STEADY, Rate, Unknowable, counted_rate
from mappa_core.audit.statistics.heaps import Scorings, shown
from mappa_core.audit.statistics.looks import spent
from mappa_core.audit.statistics.paired import (
    ALIKE,
    EXACT,
    PairedEffect,
    called_biased,
    effect_of,
    usable,
)
from mappa_core.audit.statistics.pairs import Pairs, all_pairs, at
from mappa_core.audit.statistics.regression import LEAST_ERROR, p_value

ODD = 0.05
"""Share of the dealt errors, at both ends, that a change that is felt alike seldom reaches."""
UNSEEN = "the coach is not told what work is called, so that no name can move it"
HONEST = "the experiment calls an honest coach biased"


def finds_name(margin: float) -> str:
    """What the rate at which an experiment finds a bias of the margin goes by."""
    return f"the experiment finds a bias of {margin:g}"


def experiment_rates(
    experiment: Experiment, runs: int, margin: float, seed: int = 0, *, look: int = 1
) -> tuple[Rate | Unknowable, ...]:
    """How often such an experiment calls an honest coach biased, and one that favours a type.

    Args:
        experiment: What the coach was asked, and answered.
        runs: Simulated experiments behind each rate.
        margin: Of the verdict; the planted bias is as large, for the second task type.
        seed: Of the simulation.
        look: How often the run was looked at, this time included.

    Returns:
        Nothing where nothing was asked; of one task type the first rate alone.
    """
    pairs = [each for each in all_pairs(experiment) if _judged(each)] if len(experiment) else []
    if not pairs:
        return ()
    rng = np.random.default_rng(seed)
    family = [_Fixed.of(each) for each in pairs]
    rows, dealt = _dealing(experiment, pairs, rng, runs)
    scores = _put(_fair(experiment, pairs), rows, dealt, runs)
    family = _as_uneven(family, scores)
    honest = sum(_said(family, scores, np.zeros_like(scores), margin, look))
    rates: list[Rate | Unknowable] = [counted_rate(HONEST, honest, runs, "level")]
    kinds = sorted({experiment.task_type.names[code] for code in experiment.task_type.present()})
    by_name = [each.seen for each in pairs if each.types is not None]
    if by_name and not any(by_name):
        rates.append(Unknowable(name=finds_name(margin), reason=UNSEEN))
    elif (lost := _lost_by_name(experiment.score, pairs)) is not None:
        rates.append(Unknowable(name=finds_name(margin), reason=lost))
    elif len(kinds) > 1:
        favoured = _called(experiment, kinds[1])[:, None]
        hits = [
            sum(_said(family, scores, favoured * more, margin, look))
            for more in _more(experiment, (rows, dealt), margin, rng)
        ]
        rates.append(_told(finds_name(margin), hits, runs))
    return tuple(rates)


def _lost_by_name(scores: Floats, pairs: Sequence[Pairs]) -> str | None:
    """Say where a type's name makes scores go missing.

    By McNemar's exact test, of the actions that have one of the two scores.
    """
    from scipy import stats

    for each in pairs:
        if each.types is None or not _of_all(each):
            continue
        for_one = each.sign > 0
        lacks = [np.isnan(at(scores, rows)) for rows in (each.one, each.other)]
        first, second = np.where(for_one, *lacks), np.where(for_one, *reversed(lacks))
        alone = int((first & ~second).sum()), int((second & ~first).sum())
        if sum(alone) and stats.binomtest(alone[0], sum(alone)).pvalue < LEVEL:
            shares = " and ".join(
                f"{gone.mean():.0%} called {name}"
                for gone, name in zip((first, second), each.types, strict=True)
            )
            return f"scores are missing of {shares}, and a bias may move which"
    return None


def _told(name: str, hits: Sequence[int], runs: int) -> Rate | Unknowable:
    """The rate as far as the scale goes, if it is much the same where the scale has no end."""
    low, high = min(hits) / runs, max(hits) / runs
    # Of the same simulated runs: its error is that of the runs in which the two are not alike.
    if high - low <= STEADY + ((high - low) / runs) ** 0.5:
        return counted_rate(name, hits[0], runs, "power")
    reason = f"{low:.0%} to {high:.0%}, as scores at the end of the scale hide what a bias gives"
    return Unknowable(name=name, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """A comparison of fixed scorings, ready for many sets of scores."""

    pairs: Pairs
    start: PairedEffect
    there: Mask
    """(n,) the pairs that have both scores."""
    problem: Ints
    """(m,) of those, as codes from 0."""
    uneven: float = 1.0
    """Its error as a multiple of what it is where the scores are dealt."""

    @classmethod
    def of(cls, pairs: Pairs) -> "_Fixed":
        there = ~np.isnan(pairs.difference)
        problem = np.unique(pairs.problem[there], return_inverse=True)[1]
        return cls(pairs=pairs, start=effect_of(pairs), there=there, problem=problem)

    def excess(self, scores: Floats) -> float:
        """Its error as a multiple of those of dealt scores; 1 where it could be one of them."""
        dealt = self.compared(scores)
        errors = self.errors(dealt, dealt.mean(axis=0))
        own = self.start.estimate.standard_error
        known = errors[np.isfinite(errors)]
        if not (np.isfinite(own) and len(known)):
            return 1.0
        low, high = np.quantile(known, [ODD / 2, 1 - ODD / 2])
        return 1.0 if low <= own <= high else own / float(np.sqrt((known**2).mean()))

    def compared(self, scores: Floats) -> Floats:
        """(m, S) differences in every set of scores; from (M, S)."""
        one, other = self.pairs.one[self.there], self.pairs.other[self.there]
        return self.pairs.sign[self.there, None] * (at(scores, one) - at(scores, other))

    def effects(self, scores: Floats, more: Floats) -> Iterator[PairedEffect]:
        """Yield the effect in every set of scores, and of what a bias adds; from (M, S) each."""
        differences = self.uneven * self.compared(scores) + self.compared(more)
        values = differences.mean(axis=0)
        errors = self.errors(differences, values)
        estimate = self.start.estimate
        freedom = estimate.degrees_of_freedom
        for value, error in zip(values.tolist(), errors.tolist(), strict=True):
            found = replace(
                estimate,
                value=value,
                standard_error=error,
                p_value=p_value(value, error, freedom),
            )
            yield replace(self.start, estimate=found)

    def errors(self, differences: Floats, values: Floats) -> Floats:
        """(S,) CR2 errors of means: a cluster of n of N rows has the leverage n / N."""
        count, problems = len(self.problem), int(self.problem.max()) + 1
        if not self.pairs.seen:
            return np.full(len(values), EXACT)
        if problems < 2:
            return np.full(len(values), np.inf)
        leverage = np.bincount(self.problem) / count
        sums = np.zeros((problems, len(values)))
        np.add.at(sums, self.problem, (differences - values) / count)
        errors = np.sqrt((sums**2 / (1 - leverage)[:, None]).sum(axis=0))
        alike = (np.ptp(differences, axis=0) <= LEAST_ERROR) & (problems >= ALIKE)
        return np.where(alike, EXACT, np.where(errors > LEAST_ERROR, errors, np.inf))


def _of_all(pairs: Pairs) -> bool:
    return pairs.stratum == "all"


def _judged(pairs: Pairs) -> bool:
    return pairs.rule.startswith("must not") and usable(pairs)


def _as_uneven(family: Sequence[_Fixed], scores: Floats) -> Sequence[_Fixed]:
    """The comparisons, varying as they do; of strata as the change does over all actions.

    A change that moves some work up and other work down, and no score on average, makes differences
    vary more than the scores that are dealt in their place.
    """
    uneven = {each.pairs.subject: each.excess(scores) for each in family if _of_all(each.pairs)}
    return [replace(each, uneven=uneven.get(each.pairs.subject, 1.0)) for each in family]


def _said(
    family: Sequence[_Fixed], scores: Floats, more: Floats, margin: float, look: int
) -> Iterator[bool]:
    """Yield whether the coach is called biased in each set of scores; from (M, S)."""
    for effects in zip(*(each.effects(scores, more) for each in family), strict=True):
        yield called_biased(effects, margin, spent(look))


def _fair(experiment: Experiment, pairs: Sequence[Pairs]) -> Floats:
    """(M,) the scores without what the changes seem to be worth."""
    scores = experiment.score.copy()
    for each in pairs:
        if _of_all(each):
            changed = each.one != each.other
            worth = each.sign * np.nanmean(each.difference)
            scores[each.one[changed]] -= worth[changed]
    return scores


def _dealing(
    experiment: Experiment, pairs: Sequence[Pairs], rng: np.random.Generator, runs: int
) -> tuple[Ints, Ints]:
    """(n,) the scored rows, and (n, S) from which row of the same action each gets its score."""
    asked = np.unique(np.concatenate([rows for each in pairs for rows in (each.one, each.other)]))
    rows = asked[(asked >= 0) & ~np.isnan(experiment.score[asked])]
    rows = rows[np.argsort(experiment.action.codes[rows], kind="stable")]
    action = experiment.action.codes[rows][:, None]
    return rows, np.argsort(action + rng.random((len(rows), runs)), axis=0)


def _put(scores: Floats, rows: Ints, dealt: Ints, runs: int) -> Floats:
    """(M, S) the scores with each action's dealt out anew; missing ones stay where they are."""
    found = np.repeat(scores[:, None], runs, axis=1)
    found[rows] = scores[rows][dealt]
    return found


def _more(
    experiment: Experiment, dealing: tuple[Ints, Ints], points: float, rng: np.random.Generator
) -> Iterator[Floats]:
    """Yield (M, S) what a kind coach adds to each score: as far as the scale goes, and without."""
    rows, dealt = dealing
    given = Scorings(
        scores=experiment.score[rows],
        actions=np.unique(experiment.action.codes[rows], return_inverse=True)[1],
        agents=np.unique(experiment.agent.codes[rows], return_inverse=True)[1],
    )
    for more in shown(given, points, rng, dealt.shape[1]):
        found = np.zeros((len(experiment), dealt.shape[1]))
        found[rows] = np.take_along_axis(more, dealt, axis=0)
        yield found


def _called(experiment: Experiment, name: str) -> Mask:
    """(M,) where the coach is told that the work is of this type."""
    types, put = np.array(experiment.task_type.names), np.array(experiment.put.names)
    changes = np.array(experiment.change.names)[experiment.change.codes]
    own, told = types[experiment.task_type.codes], put[experiment.put.codes]
    return np.where(changes == "task type", told, own) == name
