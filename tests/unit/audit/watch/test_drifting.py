"""From stored anchor scores to what is said: which type moved, and what is likely behind it."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest

from mappa_core.audit.records import Anchor, AnchorScore, VersionCount
from mappa_core.audit.watch.anchors import NO_ANCHORS, anchor_history
from mappa_core.audit.watch.drifting import DriftState, drift_figures, drift_state
from mappa_core.audit.watch.history import ScoreStream
from mappa_core.audit.watch.versions import ModelChange, model_changes

KINDS = ("algebra", "geometry")
ANCHORS = tuple(
    Anchor(
        id=UUID(int=number),
        run_id=UUID(int=99),
        action_id=UUID(int=number),
        episode_id=UUID(int=number),
        turn_index=0,
    )
    for number in range(12)
)
QUIET = ScoreStream(
    iterations=(),
    rounds=(),
    played=(),
    actions=0,
    problems=frozenset(),
    task_types=frozenset(KINDS),
)


def kind_of(anchor: Anchor) -> str:
    return KINDS[int(anchor.id) % 2]


def scored(changes_at: int, points: Sequence[float], iterations: int = 60) -> list[AnchorScore]:
    """Noisy scores of a coach whose model is replaced; `points` are what each type then gains."""
    rng = np.random.default_rng(1)
    repeats = [(0, 0), (0, 1), (0, 2), *((at + 1, 0) for at in range(iterations))]
    return [
        AnchorScore(
            anchor_id=anchor.id,
            iteration=iteration,
            repeat_index=repeat,
            score=float(
                np.round(5 + rng.normal() + (iteration >= changes_at) * points[number % 2])
            ),
            unscored_reason=None,
            coach="gemini",
            model_version="b" if iteration >= changes_at else "a",
            rubric_sha256="ab" * 32,
        )
        for number, anchor in enumerate(ANCHORS)
        for iteration, repeat in repeats
    ]


def watched(scores: Sequence[AnchorScore], counts: Sequence[VersionCount] = ()) -> DriftState:
    kinds = {anchor.id: kind_of(anchor) for anchor in ANCHORS}
    anchors = anchor_history(ANCHORS, scores, kinds)
    return drift_state(QUIET, anchors, model_changes(scores, counts))


def test_a_silent_change_of_the_model_is_named_as_the_likely_cause() -> None:
    seen = watched(scored(40, (2.0, 0.0)))
    assert (seen.cause, seen.task_types) == ("coach", ("algebra",))
    assert seen.earliest is not None
    assert seen.latest is not None
    assert seen.earliest <= 40 <= seen.latest
    (change,) = seen.changes
    assert change == ModelChange(iteration=40, before="a", after="b", likely_cause=True)
    assert seen.says.startswith("the coach has drifted since iteration 40 for algebra; +")
    said = "likely cause: the provider's model changed from a to b at iteration 40, within the"
    assert said in seen.says
    found = {figure.subject: figure for figure in drift_figures(seen, QUIET)}
    assert found["anchors, algebra"].verdict == "coach"
    assert found["anchors, geometry"].verdict == "none"
    changed = found["b"]
    assert (changed.kind, changed.against, changed.iteration) == ("model_change", "a", 40)
    assert changed.verdict == "likely cause"


def test_a_change_of_the_model_without_a_drift_is_told() -> None:
    seen = watched(scored(40, (0.0, 0.0)))
    assert seen.cause == "none"
    said = "the provider's model changed from a to b at iteration 40: no drift at that time"
    assert seen.lines == (said,)


def test_a_change_of_the_model_at_another_time_is_not_the_cause() -> None:
    scores = [replace(score, model_version="a") for score in scored(40, (2.0, 2.0))]
    counts = [
        VersionCount(iteration=i, model_version="b" if i > 2 else "a", actions=9)
        for i in range(1, 61)
    ]
    seen = watched(scores, counts)
    assert (seen.cause, seen.task_types) == ("coach", KINDS)
    (change,) = seen.changes
    assert (change.iteration, change.likely_cause) == (3, False)
    assert "likely cause" not in seen.says
    assert len(seen.lines) == 2


def test_versions_are_those_of_most_scores_and_need_no_anchors() -> None:
    rows = [(1, "a", 9), (2, "a", 8), (2, "b", 1), (3, "a", 4), (3, "b", 5), (4, "b", 9)]
    counts = [VersionCount(iteration=i, model_version=v, actions=n) for i, v, n in rows]
    changes = model_changes((), counts)
    assert changes == (ModelChange(iteration=3, before="a", after="b"),)
    assert drift_state(QUIET, NO_ANCHORS, changes).changes == changes


@pytest.mark.parametrize(
    ("points", "cause"), [((0.0, 0.0), "policy"), ((0.0, None), "coach or policy")]
)
def test_the_policy_is_named_only_where_every_type_has_anchors_that_held_still(
    points: tuple[float, float | None], cause: str
) -> None:
    """Problems that come back get two points more; with None a type has no anchors."""
    rng = np.random.default_rng(2)
    later = [float(i >= 15) for i in range(30)]
    stream = replace(
        QUIET,
        iterations=tuple(range(1, 31)),
        rounds=tuple(5 + rng.normal(0, 1, 12) + 2 * more for more in later),
        played=(tuple(map(str, range(12))),) * 30,
    )
    scores = scored(99, (0.0, 0.0))
    left = [anchor for anchor in ANCHORS if points[KINDS.index(kind_of(anchor))] is not None]
    kinds = {anchor.id: kind_of(anchor) for anchor in left}
    anchors = anchor_history(left, [s for s in scores if s.anchor_id in kinds], kinds)
    assert drift_state(stream, anchors).cause == cause
