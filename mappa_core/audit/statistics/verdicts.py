"""Three verdicts: biased, equivalent, cannot tell, and how many more actions would tell.

biased       different from zero (Benjamini-Hochberg over the family) and not equivalent
equivalent   two one-sided tests: smaller than the margin either way (Schuirmann 1987)
cannot tell  neither; absence of proof is not proof of absence
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics.regression import MIN_DF, Estimate

Verdict: TypeAlias = Literal["biased", "equivalent", "cannot tell"]

ALPHA = 0.05
POWER = 0.8
"""How sure `more_actions` wants to be."""
_REACH = float(special.ndtri(1 - ALPHA) + special.ndtri((1 + POWER) / 2))
MARGIN_POINTS = 0.5
"""Biases below this do not matter, unless the reader says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An estimate and what to make of it."""

    estimate: Estimate
    adjusted_p: float
    """Benjamini-Hochberg over the family."""
    equivalence_p: float
    """Of a bias as large as the margin."""
    margin: float
    verdict: Verdict
    more_actions: int
    """Besides those there are, on further problems, to have an 80 % chance of a verdict of
    equivalence where there is no bias; 0 where there is a verdict."""


def judge(
    estimates: Sequence[Estimate],
    actions: Sequence[int],
    margin: float = MARGIN_POINTS,
    share: float = 1.0,
) -> tuple[Judged, ...]:
    """Judge a family of effects together.

    Args:
        estimates: The family.
        actions: Rows behind each.
        margin: In the estimates' unit, above 0.
        share: Of the chance of a false alarm, that this look may spend.

    Raises:
        ValueError: `margin` is not above 0.
    """
    if margin <= 0:
        raise ValueError(f"the margin is above 0, not {margin}")
    if not estimates:
        return ()
    adjusted = _false_discovery(np.array([each.p_value for each in estimates])) / share
    return tuple(
        _judged(estimate, min(float(p), 1.0), count, margin)
        for estimate, p, count in zip(estimates, adjusted, actions, strict=True)
    )


def _false_discovery(p_values: Floats) -> Floats:
    """Adjusted p-values (Benjamini & Hochberg 1995): min over j >= i of p_(j) n / j."""
    count, falling = len(p_values), np.argsort(p_values)[::-1]
    adjusted = np.empty(count)
    adjusted[falling] = np.minimum.accumulate(p_values[falling] * count / np.arange(count, 0, -1))
    return adjusted


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of a family: biased if any is, equivalent if there are some and all are."""
    if "biased" in verdicts:
        return "biased"
    return "equivalent" if verdicts and set(verdicts) == {"equivalent"} else "cannot tell"


def equivalence_p(estimate: Estimate, margin: float) -> float:
    """p-value of the two one-sided tests against a bias of `margin` or more."""
    room = margin - abs(estimate.value)
    if math.isinf(estimate.standard_error):
        return 1.0
    freedom = max(estimate.degrees_of_freedom, MIN_DF)
    return float(special.stdtr(freedom, -room / estimate.standard_error))


def more_actions(estimate: Estimate, actions: int, margin: float) -> int:
    """How many more actions would probably tell, at the present spread and problem size.

    The standard error that passes both one-sided tests with 80 % where the bias is zero is
    margin / (z(0.95) + z(0.90)) (Julious 2004); it shrinks with the root of the actions. Where
    the spread is not known yet, twice what there is.
    """
    if math.isinf(estimate.standard_error):
        return actions
    factor = (estimate.standard_error * _REACH / margin) ** 2
    # Nearly precise enough, yet undecided: the bias is close to the margin; halve the error.
    factor = factor if factor > 1 else 4.0
    return math.ceil(actions * (factor - 1))


def _judged(estimate: Estimate, adjusted_p: float, actions: int, margin: float) -> Judged:
    same = equivalence_p(estimate, margin)
    verdict: Verdict = "cannot tell"
    if same <= ALPHA:
        verdict = "equivalent"
    elif adjusted_p <= ALPHA:
        verdict = "biased"
    return Judged(
        estimate=estimate,
        adjusted_p=adjusted_p,
        equivalence_p=same,
        margin=margin,
        verdict=verdict,
        more_actions=more_actions(estimate, actions, margin) if verdict == "cannot tell" else 0,
    )
