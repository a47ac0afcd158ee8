"""Did the policies get better? Paired by problem, with an interval and one of three verdicts.

    difference = mean over problems of (mean success after - mean success before)

The interval is a percentile bootstrap over problems (Efron & Tibshirani 1993, chapter 13): a
problem's episodes share its difficulty, so problems, not episodes, are resampled. Of few problems
it is too narrow, and so it is of many where few changed: up to `FEW` problems, and changes that
spread by less than `RARE` full ones, have an interval of their own (`intervals.few_changes`). A
verdict also needs `FEWEST_CHANGED` problems that changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import numpy as np

from mappa_core.evaluate.intervals import few_changes

Verdict = Literal["better", "worse", "cannot tell"]

FEW = 50
"""Problems up to which the bootstrap covers less than 94 % in some worlds."""
RARE = 10.0
"""Full changes below which it covers less than 92 %: sum (d_i - d)^2, which is n p (1 - p) where a
share p of n problems changed fully; from 10 on a binomial share is taken to be normal."""
FEWEST_CHANGED = 6
"""Below this, changes all in one direction pass a two-sided sign test: 2 * 0.5**5 > 0.05."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Mean success, skill or another figure before and after; success and skill are in [0, 1]."""

    problems: int
    changed: int
    """Problems whose mean is not what it was."""
    episodes: int
    """On each side."""
    before: float
    after: float
    difference: float
    low: float
    """Of the 95 % interval of the difference."""
    high: float

    @property
    def verdict(self) -> Verdict:
        """What the interval says, where enough problems changed for it to mean something."""
        if self.changed < FEWEST_CHANGED:
            return "cannot tell"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "cannot tell"

    def metrics(self, prefix: str = "held_out") -> dict[str, float]:
        """For the tracker and for scripts."""
        return {
            f"{prefix}/problems": float(self.problems),
            f"{prefix}/before": self.before,
            f"{prefix}/after": self.after,
            f"{prefix}/gain": self.difference,
            f"{prefix}/gain_low": self.low,
            f"{prefix}/gain_high": self.high,
        }

    def table(self) -> list[dict[str, str | float]]:
        """For people."""
        return [
            {"": "before", "success": round(self.before, 4)},
            {"": "after", "success": round(self.after, 4)},
            {
                "": f"gain, 95 % interval {self.low:+.3f} to {self.high:+.3f}: {self.verdict}",
                "success": round(self.difference, 4),
            },
        ]


def compare(
    before: Mapping[UUID, Sequence[float]],
    after: Mapping[UUID, Sequence[float]],
    *,
    resamples: int,
    seed: int,
    span: float = 1.0,
) -> Comparison:
    """Compare two sets of episodes on the same problems.

    Args:
        before: Success, or skill, of each problem's episodes.
        after: The same problems, later.
        resamples: Bootstrap resamples.
        seed: Of the resampling.
        span: What one episode can change; 1 of success, and of skill.

    Raises:
        ValueError: The problems differ, or there are none.
    """
    if set(before) != set(after) or not before:
        raise ValueError("before and after must cover the same problems, at least one")
    problems = sorted(before)
    earlier = np.array([np.mean(before[problem]) for problem in problems])
    later = np.array([np.mean(after[problem]) for problem in problems])
    differences = later - earlier
    spread = float(((differences - differences.mean()) ** 2).sum())
    if len(problems) <= FEW or spread < RARE * span**2:
        low, high = few_changes(differences, span)
    else:
        low, high = _interval(differences, resamples, seed)
    return Comparison(
        problems=len(problems),
        changed=int(np.count_nonzero(differences)),
        episodes=sum(len(after[problem]) for problem in problems),
        before=float(earlier.mean()),
        after=float(later.mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
    )


def _interval(differences: np.ndarray, resamples: int, seed: int) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(differences), size=(resamples, len(differences)))
    low, high = np.quantile(differences[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
