"""What a run's anchors got, from stored scores: the same actions, scored again every iteration."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np

from mappa_core.audit.frame import Floats
from mappa_core.audit.records import Anchor, AnchorScore
from mappa_core.audit.statistics import drift

FEWEST_REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorHistory:
    """What the anchors got, iteration by iteration; A anchors, I iterations."""

    known: Floats
    """(A,)."""
    baseline_error: float
    """Standard error of the mean of `known`; 0 where people gave them."""
    repeats: Floats
    """(A, K) the baseline scorings, NaN where there was none."""
    iterations: tuple[int, ...]
    rounds: tuple[Floats, ...]
    """I arrays (A,), NaN where there was no score."""
    rubric_changes: tuple[int, ...]
    """Positions in `iterations` at which the rubric is another than before."""
    version_changes: Mapping[int, str] = field(default_factory=dict[int, str])
    """By iteration, the coach's model version where it is another than before, as stored."""


NO_ANCHORS = AnchorHistory(
    known=np.zeros(0),
    baseline_error=0.0,
    repeats=np.zeros((0, 0)),
    iterations=(),
    rounds=(),
    rubric_changes=(),
)


def anchor_history(anchors: Sequence[Anchor], scores: Sequence[AnchorScore]) -> AnchorHistory:
    """Arrange stored anchor scores by iteration.

    Anchors with neither a known score nor a baseline of two repeats are left out.
    """
    given = _by_anchor(scores)
    baselines = {anchor.id: _baseline(anchor, given[anchor.id, 0]) for anchor in anchors}
    usable = {anchor: row for anchor, row in baselines.items() if row is not None}
    later = sorted({score.iteration for score in scores if score.iteration > 0})
    if not usable or not later:
        return NO_ANCHORS
    known, error = drift.known_scores(list(usable.values()))
    return AnchorHistory(
        known=known,
        baseline_error=error,
        repeats=_padded([given[anchor, 0] for anchor in usable]),
        iterations=tuple(later),
        rounds=tuple(
            np.array([float(np.mean(given[anchor, at] or np.nan)) for anchor in usable])
            for at in later
        ),
        rubric_changes=tuple(_rubric_changes(scores, later)),
        version_changes=dict(_version_changes(scores, later)),
    )


def _padded(repeats: Sequence[Sequence[float]]) -> Floats:
    """(A, K) the scores of each anchor, NaN beyond its own."""
    width = max(map(len, repeats), default=0)
    return np.array([[*row, *[np.nan] * (width - len(row))] for row in repeats])


def _by_anchor(scores: Sequence[AnchorScore]) -> Mapping[tuple[UUID, int], list[float]]:
    """The scores of each anchor in each iteration; an empty list where there are none."""
    given = defaultdict[tuple[UUID, int], list[float]](list)
    for score in scores:
        if score.score is not None:
            given[score.anchor_id, score.iteration].append(score.score)
    return given


def _baseline(anchor: Anchor, repeats: Sequence[float]) -> Floats | None:
    if anchor.known_score is not None:
        return np.array([anchor.known_score])
    return np.array(repeats) if len(repeats) >= FEWEST_REPEATS else None


def _rubric_changes(scores: Sequence[AnchorScore], iterations: Sequence[int]) -> Iterator[int]:
    rubrics = {score.iteration: score.rubric_sha256 for score in scores}
    before = rubrics.get(0)
    for position, iteration in enumerate(iterations):
        if before is not None and rubrics[iteration] != before:
            yield position
        before = rubrics[iteration]


def _version_changes(
    scores: Sequence[AnchorScore], iterations: Sequence[int]
) -> Iterator[tuple[int, str]]:
    versions = {score.iteration: score.model_version for score in scores}
    before = versions.get(0)
    for iteration in iterations:
        if before is not None and versions[iteration] != before:
            yield iteration, versions[iteration]
        before = versions[iteration]
