"""What a regression of stored scores lets one say of a coach; experiments say more.

    biased       larger than unmeasured difficulty could make it (`sensitivity`)
    suspected    different from zero, but unmeasured difficulty could explain it
    equivalent   smaller than the margin either way, and than the margin less what measured
                 difficulty moved (two one-sided tests, Schuirmann 1987)
    cannot tell  none of these; absence of proof is no proof of absence

Each holds with the missing scores at their worst. The first two are tests at 5 % over the whole
family (Holm 1979). `beyond` says whether the gap's own 95 % interval is beyond the margin or beyond
zero only. A gap that is shown to be smaller than the margin is equivalent, even if it is not zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics.regression import LEAST_ERROR, MIN_DF, Estimate
from mappa_core.audit.statistics.sensitivity import Unknown
from mappa_core.audit.statistics.verdicts import ALPHA, MARGIN_POINTS, more_actions

Word: TypeAlias = Literal["biased", "suspected", "equivalent", "cannot tell"]
ALARMS: tuple[Word, ...] = ("biased", "suspected")
"""Words that say that there is a gap."""
Beyond: TypeAlias = Literal["margin", "zero", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationalVerdict:
    """One gap and what a regression lets one say of it."""

    estimate: Estimate
    unknown: Unknown
    adjusted_p: float
    """Of no gap; Holm, over the family."""
    unexplained_p: float
    """Of a gap no larger than unmeasured difficulty could make it; the same."""
    equivalence_p: float
    """Of a gap as large as the margin, missing scores and measured difficulty at their worst."""
    margin: float
    verdict: Word
    beyond: Beyond
    """What the interval lies beyond; empty where it holds zero."""
    robustness: float
    """Sensitivity value: the share of what is left of score and of task type that unmeasured
    difficulty would have to explain to bring the interval to zero; 0 where it holds zero."""
    more_actions: int
    """Besides those there are, on further problems, to have an 80 % chance of a verdict of
    equivalence where there is no bias; 0 where there is a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One comparison as the verdict sees it."""

    estimate: Estimate
    unknown: Unknown
    actions: int
    at_most: Word = "biased"
    """`cannot tell` for what may be deserved, as length may: only an experiment can say more."""
    difficulty_measured: bool = True
    """Without, a gap is at most suspected, and only if it is larger than unmeasured difficulty
    could make it."""

    def within(self, whole: Unknown) -> "Gap":
        """The gap of a part: unmeasured difficulty could do there what it could in the whole."""
        own = self.unknown
        measured, outcome = max(own.measured, whole.measured), max(own.outcome, whole.outcome)
        if (measured, outcome) == (own.measured, own.outcome):
            return self
        return replace(self, unknown=own.where(measured, outcome))


def judge_observed(
    gaps: Sequence[Gap], margin: float = MARGIN_POINTS, families: float = 1
) -> tuple[ObservationalVerdict, ...]:
    """Judge a family of gaps together.

    Args:
        gaps: The family.
        margin: In points, above 0.
        families: Families, and looks, that share the 5 %: its inverse is what this one may spend.

    Raises:
        ValueError: `margin` is not above 0.
    """
    if margin <= 0:
        raise ValueError(f"the margin is above 0, not {margin}")
    different = holm([_p_value(gap, 0.0) for gap in gaps]) * families
    unexplained = holm([_p_value(gap, gap.unknown.unmeasured) for gap in gaps]) * families
    return tuple(
        _judged(gap, float(min(p, 1.0)), float(min(more, 1.0)), margin)
        for gap, p, more in zip(gaps, different, unexplained, strict=True)
    )


def overall_word(words: Sequence[Word]) -> Word:
    """One word of a family: biased or suspected if any is, equivalent if there are some and all."""
    for word in ALARMS:
        if word in words:
            return word
    return "equivalent" if words and set(words) == {"equivalent"} else "cannot tell"


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p-values that hold over their whole family (Holm 1979), not above 1."""
    count = len(p_values)
    order = np.argsort(p_values)
    steps = np.asarray(p_values, dtype=float)[order] * (count - np.arange(count))
    adjusted = np.empty(count)
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return adjusted


def _p_value(gap: Gap, allowed: float) -> float:
    """Of a gap of at most `allowed` either way, missing scores at their worst."""
    nearest = _nearest(gap.estimate.value, gap.unknown.missing_low, gap.unknown.missing_high)
    over = abs(nearest) - allowed
    return tail(over, gap.estimate) * 2 if over > 0 else 1.0


def p_values(
    values: Floats, errors: Floats, like: Estimate, missing_low: float, missing_high: float
) -> Floats:
    """Of no gap, missing scores at their worst, for (S,) estimates with their errors."""
    positive, negative = np.maximum(values + missing_low, 0), np.minimum(values + missing_high, 0)
    nearest = np.abs(np.where(values > 0, positive, negative))
    known = np.isfinite(errors) & (errors > LEAST_ERROR) & (nearest > 0)
    away = np.divide(nearest, errors, out=np.zeros_like(values), where=known)
    found = 2 * special.stdtr(max(like.degrees_of_freedom, MIN_DF), -away)
    return np.where(known, found, 1.0)


def _nearest(value: float, low: float, high: float) -> float:
    """The value nearest to zero that missing scores allow."""
    if value > 0:
        return max(value + low, 0.0)
    return min(value + high, 0.0)


def tail(points: float, estimate: Estimate) -> float:
    """One-sided p-value of being so many points away, by the estimate's error."""
    if not np.isfinite(estimate.standard_error) or estimate.standard_error <= 0:
        return 0.5
    freedom = max(estimate.degrees_of_freedom, MIN_DF)
    return float(special.stdtr(freedom, -abs(points) / estimate.standard_error))


def _judged(
    gap: Gap, adjusted_p: float, unexplained_p: float, margin: float
) -> ObservationalVerdict:
    same = _equivalence_p(gap, margin)
    proven = adjusted_p <= ALPHA
    away = _away(gap) if proven else 0.0
    word = "equivalent" if same <= ALPHA else _word(gap, adjusted_p, unexplained_p)
    undecided = word == "cannot tell"
    more = more_actions(gap.estimate, gap.actions, margin) if undecided else 0
    return ObservationalVerdict(
        estimate=gap.estimate,
        unknown=gap.unknown,
        adjusted_p=adjusted_p,
        unexplained_p=unexplained_p,
        equivalence_p=same,
        margin=margin,
        verdict=word,
        beyond="" if not proven else "margin" if away > margin else "zero",
        robustness=gap.unknown.robustness(away),
        more_actions=more,
    )


def _word(gap: Gap, adjusted_p: float, unexplained_p: float) -> Word:
    different, unexplained = adjusted_p <= ALPHA, unexplained_p <= ALPHA
    if gap.at_most == "cannot tell" or not different:
        return "cannot tell"
    if not gap.difficulty_measured:
        return "suspected" if unexplained else "cannot tell"
    return "biased" if unexplained and gap.at_most == "biased" else "suspected"


def _away(gap: Gap) -> float:
    """Distance from zero of the 95 % interval, missing scores at their worst; at least 0."""
    low, high = gap.estimate.interval()
    low, high = low + gap.unknown.missing_low, high + gap.unknown.missing_high
    return max(low, -high, 0.0)


def _equivalence_p(gap: Gap, margin: float) -> float:
    """p-value of the two one-sided tests, with missing scores and difficulty at their worst."""
    unknown, value = gap.unknown, gap.estimate.value
    most = max(value + unknown.missing_high, -(value + unknown.missing_low)) + unknown.measured
    room = margin - most
    return tail(room, gap.estimate) if room > 0 else 1.0
