"""What one change to a stored action is worth to its coach: differences within the action.

Nothing but the change differs within a pair, so the mean difference is its effect whatever the
work was worth. Problems are the clusters (CR2, `regression`). A pair that lacks a score could
differ by 10 points either way, and the verdict holds for every such difference (Manski 1990).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mappa_core.audit.frame import Experiment, Floats, Ints
from mappa_core.audit.statistics.looks import spent
from mappa_core.audit.statistics.observational import Beyond
from mappa_core.audit.statistics.pairs import TODAY, Pairs, Rule, all_pairs
from mappa_core.audit.statistics.regression import (
    LEAST_ERROR,
    Estimate,
    clustered_mean,
    p_value,
)
from mappa_core.audit.statistics.verdicts import (
    MARGIN_POINTS,
    Judged,
    Verdict,
    judge,
    more_actions,
    overall,
)

WIDEST = 10.0
"""Points by which two scores can differ."""
EXACT = 1e-6
"""Standard error, in points, of a coach whose answers to enough problems differ by one number."""
ALIKE = 20
"""Problems that are enough: with 95 % chance at most 14 % of all problems are otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEffect:
    """What a change is worth to a coach, in points."""

    subject: str
    against: str
    stratum: str
    """`all`, `right`, `wrong`, an agent, or its right or wrong work: `coder, right`."""
    rule: Rule
    estimate: Estimate
    missing: float
    """Share of the pairs that lack a score."""
    deviation: float
    """Of the differences, in points."""
    seen: bool
    actions: int
    problems: int
    sql: str
    types: tuple[str, str] | None = None
    """The task type that the work was called by, and the one instead of which."""
    judged: Judged | None = None
    """None where the change may matter."""

    @property
    def verdict(self) -> Verdict | Literal[""]:
        """Of the bias that the change shows, or empty where it may matter."""
        return "" if self.judged is None else self.judged.verdict

    @property
    def beyond(self) -> Beyond:
        """Of a bias: what its interval lies beyond, missing pairs at their worst."""
        if self.judged is None or self.judged.verdict != "biased":
            return ""
        return "margin" if self.judged.estimate.interval()[0] > self.judged.margin else "zero"


def experiment_effects(
    experiment: Experiment, margin: float = MARGIN_POINTS, look: int = 1
) -> tuple[PairedEffect, ...]:
    """Work out every comparison that the scorings allow, those with a verdict first.

    Args:
        experiment: Scorings by the coach that trained the actions.
        margin: Biases below this many points do not matter.
        look: How often the run was looked at, this time included.
    """
    if not len(experiment):
        return ()
    effects = [effect_of(pairs) for pairs in all_pairs(experiment) if usable(pairs)]
    share = spent(look)
    judged = _judged([each for each in effects if each.rule.startswith("must not")], margin, share)
    same = _judged([each for each in effects if each.rule == "as stored"], margin, share)
    return (*judged, *same, *(each for each in effects if each.rule == "may matter"))


def experiment_verdict(effects: Sequence[PairedEffect]) -> Verdict:
    """Biased if a change that must not matter does; equivalent if none does.

    Equivalence is of the coach that was asked, so it takes one that scores, over all actions, as
    it did when the run was trained, and otherwise in no part that could be seen.
    """
    found = overall([each.judged.verdict for each in _of(effects, "must not") if each.judged])
    today = _of(effects, "as stored")
    same = [each.verdict for each in today if each.subject == TODAY] == ["equivalent"]
    moved = not same or "biased" in [each.verdict for each in today]
    return "cannot tell" if found == "equivalent" and moved else found


def biased_by(effects: Sequence[PairedEffect]) -> tuple[str, ...]:
    """The changes that must not matter and do."""
    found = (each.subject for each in _of(effects, "must not") if each.verdict == "biased")
    return tuple(dict.fromkeys(found))


def _of(effects: Sequence[PairedEffect], rule: str) -> Sequence[PairedEffect]:
    return [each for each in effects if each.rule.startswith(rule)]


def usable(pairs: Pairs) -> bool:
    """Whether there is a pair with both scores."""
    return bool((~np.isnan(pairs.difference)).any())


def effect_of(pairs: Pairs) -> PairedEffect:
    """What one change is worth, before it is judged."""
    there = ~np.isnan(pairs.difference)
    difference, problem = pairs.difference[there], pairs.problem[there]
    return PairedEffect(
        subject=pairs.subject,
        against=pairs.against,
        stratum=pairs.stratum,
        rule=pairs.rule,
        estimate=_mean(difference, problem, seen=pairs.seen),
        missing=1 - float(there.mean()),
        deviation=float(difference.std()),
        seen=pairs.seen,
        actions=len(difference),
        problems=len(np.unique(problem)),
        sql=pairs.sql,
        types=pairs.types,
    )


def _mean(values: Floats, clusters: Ints, *, seen: bool) -> Estimate:
    """The mean with a cluster-robust error; exact where the coach cannot see the change."""
    value, count = float(values.mean()), len(np.unique(clusters))
    if not seen or (np.ptp(values) <= LEAST_ERROR and count >= ALIKE):
        return Estimate(
            value=value,
            standard_error=EXACT,
            degrees_of_freedom=max(count - 1.0, 1.0),
            p_value=0.0 if value else 1.0,
        )
    return clustered_mean(values, clusters)


def called_biased(effects: Sequence[PairedEffect], margin: float, share: float) -> bool:
    """Whether one family of effects makes the coach biased, its missing pairs at their worst."""
    counts = [each.actions for each in effects]
    least = judge([_harm(each, -1.0) for each in effects], counts, margin, share)
    return any(each.verdict == "biased" for each in least)


def _judged(effects: Sequence[PairedEffect], margin: float, share: float) -> Iterator[PairedEffect]:
    """Judge effects as one family, each by the least and the most that it could be."""
    counts = [each.actions for each in effects]
    least = judge([_harm(each, -1.0) for each in effects], counts, margin, share)
    most = judge([_harm(each, 1.0) for each in effects], counts, margin, share)
    for effect, low, high in zip(effects, least, most, strict=True):
        told = low.verdict == "biased" or high.verdict == "equivalent"
        judged = (low if low.verdict == "biased" else high) if told else _untold(effect, low)
        yield replace(effect, judged=judged)


def _untold(effect: PairedEffect, judged: Judged) -> Judged:
    wanted = more_actions(effect.estimate, effect.actions, judged.margin)
    return replace(judged, verdict="cannot tell", more_actions=wanted)


def _harm(effect: PairedEffect, direction: float) -> Estimate:
    """The effect with its missing pairs at their worst: towards zero (-1) or away from it (1)."""
    estimate = effect.estimate
    harmful = estimate.value > 0 or effect.rule != "must not pay"
    size = abs(estimate.value) if harmful else 0.0
    size = max((1 - effect.missing) * size + direction * WIDEST * effect.missing, 0.0)
    if np.isinf(estimate.standard_error):
        return replace(estimate, value=size)
    chance = p_value(size, estimate.standard_error, estimate.degrees_of_freedom)
    return replace(estimate, value=size, p_value=chance)
