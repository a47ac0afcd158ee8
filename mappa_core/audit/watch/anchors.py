"""What a run's anchors got, from stored scores: the same actions, scored again every iteration."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from mappa_core.audit.frame import Floats
from mappa_core.audit.records import Anchor, AnchorScore
from mappa_core.audit.statistics.anchor_drift import Rescored, known_scores

FEWEST_REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorHistory:
    """What the anchors got, iteration by iteration."""

    scores: Rescored
    """A round for each iteration."""
    iterations: tuple[int, ...]
    rubric_changes: tuple[int, ...]
    """Positions in `iterations` at which the rubric is another than before."""


NO_ANCHORS = AnchorHistory(
    scores=Rescored(
        known=np.zeros(0),
        variances=np.zeros(0),
        repeats=np.zeros((0, 0)),
        rounds=(),
        task_types=(),
    ),
    iterations=(),
    rubric_changes=(),
)


def anchor_history(
    anchors: Sequence[Anchor], scores: Sequence[AnchorScore], task_types: Mapping[UUID, str]
) -> AnchorHistory:
    """Arrange stored anchor scores by iteration.

    Anchors with neither a known score nor a baseline of two repeats are left out.

    Args:
        anchors: Of the run.
        scores: Theirs.
        task_types: Of the problem behind each anchor.
    """
    given = _by_anchor(scores)
    baselines = {anchor.id: _baseline(anchor, given[anchor.id, 0]) for anchor in anchors}
    usable = {anchor: row for anchor, row in baselines.items() if row is not None}
    later = sorted({score.iteration for score in scores if score.iteration > 0})
    if not usable or not later:
        return NO_ANCHORS
    known, variances = known_scores(list(usable.values()))
    return AnchorHistory(
        scores=Rescored(
            known=known,
            variances=variances,
            repeats=_padded([given[anchor, 0] for anchor in usable]),
            rounds=tuple(
                np.array([float(np.mean(given[anchor, at] or np.nan)) for anchor in usable])
                for at in later
            ),
            task_types=tuple(task_types[anchor] for anchor in usable),
        ),
        iterations=tuple(later),
        rubric_changes=tuple(_rubric_changes(scores, later)),
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
