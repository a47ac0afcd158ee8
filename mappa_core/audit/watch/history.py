"""Drift of one run from its stored rows: anchors by iteration, and the stream of scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.records import Anchor, AnchorScore
from mappa_core.audit.statistics import drift
from mappa_core.audit.writing import Draft

FEWEST_REPEATS = 2
MOST_PROBLEMS = 64
"""Of an iteration, that the stream's test looks at; more would only cost time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorHistory:
    """What the anchors got, iteration by iteration; A anchors, I iterations."""

    known: Floats
    """(A,)."""
    baseline_error: float
    """Standard error of the mean of `known`; 0 where people gave them."""
    iterations: tuple[int, ...]
    rounds: tuple[Floats, ...]
    """I arrays (A,), NaN where there was no score."""
    rubric_changes: tuple[int, ...]
    """Positions in `iterations` at which the rubric is another than before."""


NO_ANCHORS = AnchorHistory(
    known=np.zeros(0), baseline_error=0.0, iterations=(), rounds=(), rubric_changes=()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The scores of what the policies did; I iterations."""

    iterations: tuple[int, ...]
    rounds: tuple[Floats, ...]
    """I arrays of problems' mean scores, of `MOST_PROBLEMS` problems at most."""
    actions: int
    problems: frozenset[str]

    def then(self, frame: Frame) -> "Stream":
        """With the iterations of a further frame, which come after these."""
        later = stream(frame)
        return Stream(
            iterations=self.iterations + later.iterations,
            rounds=self.rounds + later.rounds,
            actions=self.actions + later.actions,
            problems=self.problems | later.problems,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The drift test's state after the latest iteration."""

    cause: drift.Cause
    anchors: drift.Wealth
    stream: drift.Wealth
    iterations: tuple[int, ...]
    """Of the stream; the anchors' are a part of them."""

    @property
    def since(self) -> int | None:
        """The iteration the drift set in; None where there is none."""
        wealth = self.stream if self.cause == "policy" else self.anchors
        onset = None if self.cause == "none" else wealth.onset
        return None if onset is None else self.iterations[onset]


def history(anchors: Sequence[Anchor], scores: Sequence[AnchorScore]) -> AnchorHistory:
    """Arrange stored anchor scores by iteration.

    Anchors with neither a known score nor a baseline of two repeats are left out.
    """
    by_anchor = {anchor.id: _baseline(anchor, scores) for anchor in anchors}
    usable = [anchor.id for anchor in anchors if by_anchor[anchor.id] is not None]
    later = sorted({score.iteration for score in scores if score.iteration > 0})
    if not usable or not later:
        return NO_ANCHORS
    baselines = [row for anchor in usable if (row := by_anchor[anchor]) is not None]
    known = np.array([row.mean() for row in baselines])
    errors = [row.var(ddof=1) / len(row) for row in baselines if len(row) >= FEWEST_REPEATS]
    return AnchorHistory(
        known=known,
        baseline_error=float(np.sqrt(sum(errors))) / len(usable),
        iterations=tuple(later),
        rounds=tuple(
            np.array([_score(scores, anchor, iteration) for anchor in usable])
            for iteration in later
        ),
        rubric_changes=tuple(_rubric_changes(scores, later)),
    )


def watch(streamed: Stream, anchors: AnchorHistory) -> Watched:
    """Test for drift on everything there is so far."""
    played = drift.bet(anchors.rounds, anchors.known, anchors.baseline_error)
    scores = drift.bet_on_stream(streamed.rounds)
    longer = len(streamed.iterations) >= len(anchors.rounds)
    return Watched(
        cause=drift.attribute(played, scores, anchors.rubric_changes),
        anchors=played,
        stream=scores,
        iterations=streamed.iterations if longer else anchors.iterations,
    )


def stream(frame: Frame) -> Stream:
    """Every iteration's mean score of each problem."""
    scored = frame.take(~np.isnan(frame.score))
    iterations = tuple(int(i) for i in np.unique(scored.iteration))
    means = (_problem_means(scored.take(scored.iteration == i)) for i in iterations)
    return Stream(
        iterations=iterations,
        rounds=tuple(means),
        actions=len(frame),
        problems=frozenset(frame.problem.names[code] for code in frame.problem.present()),
    )


def drift_findings(streamed: Stream, anchors: AnchorHistory) -> Iterator[Draft]:
    """The state of the drift test as a finding, with an e-value for every iteration."""
    watched = watch(streamed, anchors)
    parts = (("anchors", watched.anchors, sql.ANCHORS), ("stream", watched.stream, sql.STREAM))
    for name, wealth, query in parts:
        if not len(wealth.e_values):
            continue
        detail = {
            f"e_{iteration}": float(value)
            for iteration, value in zip(
                anchors.iterations if name == "anchors" else watched.iterations,
                wealth.e_values,
                strict=False,
            )
        }
        yield Draft(
            kind="drift",
            subject=name,
            verdict=watched.cause if wealth.alarmed else "none",
            estimate=float(wealth.e_values.max()),
            unit="largest e-value",
            margin=wealth.threshold,
            iteration=watched.since if wealth.alarmed else None,
            actions=streamed.actions,
            problems=len(streamed.problems),
            sql=query,
            detail=detail,
        )


def _baseline(anchor: Anchor, scores: Sequence[AnchorScore]) -> Floats | None:
    if anchor.known_score is not None:
        return np.array([anchor.known_score])
    found = [
        score.score
        for score in scores
        if score.anchor_id == anchor.id and score.iteration == 0 and score.score is not None
    ]
    return np.array(found) if len(found) >= FEWEST_REPEATS else None


def _score(scores: Sequence[AnchorScore], anchor: object, iteration: int) -> float:
    found = [
        score.score
        for score in scores
        if score.anchor_id == anchor and score.iteration == iteration and score.score is not None
    ]
    return float(np.mean(found)) if found else float("nan")


def _rubric_changes(scores: Sequence[AnchorScore], iterations: Sequence[int]) -> Iterator[int]:
    rubrics = {score.iteration: score.rubric_sha256 for score in scores}
    before = rubrics.get(0)
    for position, iteration in enumerate(iterations):
        if before is not None and rubrics[iteration] != before:
            yield position
        before = rubrics[iteration]


def _problem_means(rows: Frame) -> Floats:
    _, index = np.unique(rows.problem.codes, return_inverse=True)
    means = np.bincount(index, weights=rows.score) / np.bincount(index)
    # In the order of the problems' ids, which are hashes: a choice that knows no score.
    return means[:MOST_PROBLEMS]
