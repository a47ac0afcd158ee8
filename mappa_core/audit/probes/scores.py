"""What probing's scores say: what each feature is worth, and what doing nothing earns.

Pairs share everything but the feature, so the interval is that of the mean difference, with
problems as clusters: a coach's answers on one problem are alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from mappa_core.audit.probes.features import features
from mappa_core.audit.statistics.regression import (
    LEAST_ERROR,
    Estimate,
    cluster_sums,
    contrast,
    fit,
)
from mappa_core.audit.statistics.verdicts import Judged, judge


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """The scores of one work without and with a feature."""

    problem: str
    """What tells its problem from others."""
    plain: float
    changed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedFeature:
    """What one feature is worth to a coach, in points."""

    feature: str
    judged: Judged
    pairs: int
    may_matter: bool

    def as_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "feature": self.feature,
            "points": self.judged.estimate.value,
            "interval": self.judged.estimate.interval(),
            "pairs": self.pairs,
            "may_matter": self.may_matter,
            "verdict": self.judged.verdict,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NullScores:
    """What a policy that does nothing earns on each task type."""

    policy: str
    means: Mapping[str, float]
    """Mean score by task type."""
    judged: Judged
    """Of the difference between the best and the worst paid type."""

    @property
    def spread(self) -> float:
        """Largest minus smallest mean."""
        return max(self.means.values()) - min(self.means.values())

    def as_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "policy": self.policy,
            "means": dict(self.means),
            "spread": self.spread,
            "verdict": self.judged.verdict,
        }


def probed(pairs: Mapping[str, Sequence[ScoredPair]], margin: float) -> tuple[ProbedFeature, ...]:
    """Judge what each feature changed; features with fewer than three pairs are left out.

    Args:
        pairs: For every feature, its scored pairs.
        margin: In points.
    """
    usable = {name: rows for name, rows in pairs.items() if len(rows) >= 3}
    deserved = {feature.name for feature in features() if feature.may_matter}
    estimates = [_mean_difference(rows) for rows in usable.values()]
    verdicts = judge(estimates, [len(rows) for rows in usable.values()], margin)
    return tuple(
        ProbedFeature(feature=name, judged=judged, pairs=len(rows), may_matter=name in deserved)
        for (name, rows), judged in zip(usable.items(), verdicts, strict=True)
    )


def null_scores(
    scores: Mapping[str, Mapping[str, Sequence[float]]], margin: float
) -> tuple[NullScores, ...]:
    """Compare what null policies earn on each task type.

    Args:
        scores: By policy and task type; types with fewer than two scores are left out.
        margin: In points.
    """
    usable = {
        policy: {name: np.array(given, float) for name, given in by_type.items() if len(given) >= 2}
        for policy, by_type in scores.items()
    }
    usable = {policy: by_type for policy, by_type in usable.items() if len(by_type) >= 2}
    counts = [sum(map(len, by_type.values())) for by_type in usable.values()]
    verdicts = judge([_widest_gap(by_type) for by_type in usable.values()], counts, margin)
    return tuple(
        NullScores(policy=policy, means=_means(by_type), judged=judged)
        for (policy, by_type), judged in zip(usable.items(), verdicts, strict=True)
    )


def _means(by_type: Mapping[str, np.ndarray]) -> Mapping[str, float]:
    return {name: float(given.mean()) for name, given in by_type.items()}


def _mean_difference(pairs: Sequence[ScoredPair]) -> Estimate:
    """The mean of what the feature changed; one that never varies is known exactly."""
    values = np.array([pair.changed - pair.plain for pair in pairs])
    _, problems = np.unique([pair.problem for pair in pairs], return_inverse=True)
    alike = bool(np.ptp(values) <= LEAST_ERROR)
    if alike or problems.max() == 0:
        error = EXACT if alike else np.inf
        return _estimate(float(values.mean()), error, max(float(problems.max()), 1.0))
    fitted = fit(cluster_sums(np.ones((len(values), 1)), values, problems.astype(np.int64)))
    return contrast(fitted, np.ones(1))


EXACT = 1e-6
"""Standard error, in points, of a coach that always answers alike."""


def _widest_gap(by_type: Mapping[str, np.ndarray]) -> Estimate:
    """The widest of all gaps, with Welch's error; p-value times the number of pairs of types."""
    means, types = _means(by_type), len(by_type)
    best = by_type[max(means, key=means.__getitem__)]
    worst = by_type[min(means, key=means.__getitem__)]
    variances = best.var(ddof=1) / len(best), worst.var(ddof=1) / len(worst)
    below = sum(v**2 / (len(g) - 1) for v, g in zip(variances, (best, worst), strict=True))
    freedom = float(sum(variances) ** 2 / below) if below > 0 else len(best) + len(worst) - 2.0
    gap, error = float(best.mean() - worst.mean()), float(np.sqrt(sum(variances)))
    return _estimate(gap, error, freedom, pairs=types * (types - 1) / 2)


def _estimate(value: float, error: float, freedom: float, pairs: float = 1) -> Estimate:
    error = max(error, EXACT)
    chance = float(2 * special.stdtr(freedom, -abs(value) / error)) * pairs
    return Estimate(
        value=value, standard_error=error, degrees_of_freedom=freedom, p_value=min(chance, 1.0)
    )
