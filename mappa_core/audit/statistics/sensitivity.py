"""What a regression cannot rule out: scores that are missing, and difficulty that was not measured.

missing      each missing score is anything in [0, 10] (Manski 1989): the contrast is a weighted
             sum of scores, so its bounds are sums of the weights times 0 or 10. A score filled
             in with its fitted value leaves the contrast where it is.
measured     what the measured difficulty explains of the raw gap between the types
outcome      points that right work gets more than wrong work of an equally hard problem
robustness   the sensitivity value of Cinelli & Hazlett (2020, Making Sense of Sensitivity,
             JRSS-B 82, eq. 18): unmeasured difficulty would have to explain this share of what
             is left of the score, and of the task type, to bring the gap to the value asked
             for. RV = (sqrt(f^4 + 4 f^2) - f^2) / 2, with f^2 the partial odds of the gap.
"""

import math
from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics.design import Regression
from mappa_core.audit.statistics.health import HIGHEST, LOWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """What could move a gap besides chance, in points."""

    missing_low: float
    """How far missing scores could lower it, at most 0."""
    missing_high: float
    """How far they could raise it, at least 0."""
    measured: float
    """What the measured difficulty moved it by, at least 0."""
    outcome: float
    """What right work gets more than wrong work, at least 0."""
    square: float
    """Square of one point of gap over the variance it would have to be explained against: the
    partial odds f^2 of a gap g are `square` x g^2."""

    @property
    def unmeasured(self) -> float:
        """How far unmeasured difficulty could move it.

        As much as measured difficulty did, or as much as right work differs from wrong work.
        """
        return max(self.measured, self.outcome)

    def where(self, measured: float, outcome: float) -> "Unknown":
        """The same of a gap that measured difficulty and outcomes move so far."""
        return Unknown(
            missing_low=self.missing_low,
            missing_high=self.missing_high,
            measured=measured,
            outcome=outcome,
            square=self.square,
        )

    def robustness(self, points: float) -> float:
        """The sensitivity value in [0, 1] of moving the gap by so many points."""
        odds = self.square * points**2
        return (math.sqrt(odds**2 + 4 * odds) - odds) / 2


NOTHING = Unknown(missing_low=0.0, missing_high=0.0, measured=0.0, outcome=0.0, square=0.0)


def unknown(model: Regression, weights: Floats, outcome: float) -> Unknown:
    """What could move a contrast besides chance.

    Args:
        model: The regression.
        weights: The contrast.
        outcome: Points that right work gets more than wrong work.
    """
    low, high = _missing(model, weights)
    used = model.fitted.used
    spread = weights[used] @ model.fitted.bread @ weights[used]
    left = float((model.residuals**2).sum())
    return Unknown(
        missing_low=low,
        missing_high=high,
        measured=abs(float(measured_through(model, weights) @ model.fitted.coefficients)),
        outcome=abs(outcome),
        square=1 / float(spread * left) if spread * left > 0 else 0.0,
    )


def _missing(model: Regression, weights: Floats) -> tuple[float, float]:
    """How far missing scores could lower and raise a contrast of all rows."""
    rows = ~model.work.scored
    if not rows.any():
        return 0.0, 0.0
    x, used = model.x[:, model.fitted.used], model.fitted.used
    own = x[rows] @ np.linalg.solve(x.T @ x, weights[used])
    expected = (model.x[rows] @ model.fitted.coefficients).clip(LOWEST, HIGHEST)
    ends = np.stack([own * (LOWEST - expected), own * (HIGHEST - expected)])
    return float(ends.min(axis=0).sum()), float(ends.max(axis=0).sum())


def measured_through(model: Regression, weights: Floats) -> Floats:
    """(k,) weights of the coefficients: what holding difficulty constant took off the contrast."""
    used = model.fitted.used
    hard = np.array([model.columns[index].measures_difficulty for index in used])
    moved = np.zeros(len(model.columns))
    if hard.any():
        xx = model.fitted.sums.xx.sum(axis=0)
        through = np.linalg.solve(xx[~hard][:, ~hard], xx[~hard][:, hard])
        moved[used[hard]] = weights[used][~hard] @ through
    return moved
