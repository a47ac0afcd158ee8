"""What a watch keeps of the iterations it has read, and the drift test on it.

    stored anchor scores         ─▶ AnchorHistory ─▶ drift of coach and rubric
    frames, one iteration each   ─▶ RunningSums   ─▶ drift of the stream, divergence of the score

Sums grow with problems, not with actions, and are enough: the regression of `trends.divergence` is
a function of each problem's X'X and X'y, so adding an iteration's gives the same figures as reading
the whole run again.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.records import Figure
from mappa_core.audit.statistics import drift
from mappa_core.audit.statistics.calibration import Scored
from mappa_core.audit.statistics.regression import ClusterSums
from mappa_core.audit.statistics.trends import Divergence, Moments, divergence
from mappa_core.audit.watch.anchors import AnchorHistory

MOST_PROBLEMS = 64
"""Of an iteration, that the stream's test looks at; more would only cost time."""
Cell: TypeAlias = tuple[str, str]
"""Agent and task type."""
Sums: TypeAlias = Mapping[str, Floats]
"""By problem: (9,) actions, and the sums of s, t, y, s^2, s t, t^2, s y and t y for score s,
iteration t and success y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStream:
    """The scores of what the policies did; I iterations."""

    iterations: tuple[int, ...]
    rounds: tuple[Floats, ...]
    """I arrays of problems' mean scores, of `MOST_PROBLEMS` problems at most."""
    played: tuple[tuple[str, ...], ...]
    """The problems of each."""
    actions: int
    problems: frozenset[str]

    def extended(self, frame: Frame) -> "ScoreStream":
        """With the iterations of a further frame, which come after these."""
        later = score_stream(frame)
        return ScoreStream(
            iterations=self.iterations + later.iterations,
            rounds=self.rounds + later.rounds,
            played=self.played + later.played,
            actions=self.actions + later.actions,
            problems=self.problems | later.problems,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """The drift test's state after the latest iteration."""

    cause: drift.Cause
    anchors: drift.Wealth
    stream: drift.Wealth
    iterations: tuple[int, ...]
    """Of the stream."""
    anchor_iterations: tuple[int, ...]
    version_changes: Mapping[int, str] = field(default_factory=dict[int, str])
    """Of the coach's model, by iteration."""

    @property
    def since(self) -> int | None:
        """The iteration the drift set in; None where there is none."""
        if self.cause == "none":
            return None
        by_stream = self.by_stream
        onset = (self.stream if by_stream else self.anchors).onset
        return (
            None
            if onset is None
            else (self.iterations if by_stream else self.anchor_iterations)[onset]
        )

    @property
    def by_stream(self) -> bool:
        """Whether the scores of what the policies did say it, not the anchors."""
        return self.cause in ("policy", "coach or policy", "policy or order")

    @property
    def says(self) -> str:
        """What drifted, in words; a change of the coach's model that is stored is named."""
        if self.cause == "coach or policy":
            said = "coach or policy has drifted, or other problems came: scores cannot tell which,"
        elif self.cause == "policy or order":
            said = "policy has drifted or other problems came, scores cannot tell which,"
        else:
            said = f"{self.cause} has drifted"
        near = [v for at, v in self.version_changes.items() if abs(at - (self.since or 0)) <= 1]
        model = f"; the coach's model is {near[-1]} since then" if near else ""
        return f"the {said} since iteration {self.since}{model}"


def drift_state(streamed: ScoreStream, anchors: AnchorHistory) -> DriftState:
    """Test for drift on every iteration there is."""
    known, repeats = anchors.known, anchors.repeats
    played = drift.bet_on_anchors(anchors.rounds, known, anchors.baseline_error, repeats)
    scores = drift.bet_on_stream(streamed.rounds)
    still = False
    if scores.onset is not None and len(known):
        since = bisect_left(anchors.iterations, streamed.iterations[scores.onset])
        still = drift.held_still(anchors.rounds, known, repeats, since)
    own = scores.alarmed and drift.bet_on_own_ranks(streamed.rounds, streamed.played).alarmed
    return DriftState(
        cause=drift.attribute(played, scores, anchors.rubric_changes, still=still, own=own),
        anchors=played,
        stream=scores,
        iterations=streamed.iterations,
        anchor_iterations=anchors.iterations,
        version_changes=anchors.version_changes,
    )


def score_stream(frame: Frame) -> ScoreStream:
    """Every iteration's mean score of each problem."""
    scored = frame.take(~np.isnan(frame.score))
    iterations = tuple(int(i) for i in np.unique(scored.iteration))
    found = [_problem_means(scored.take(scored.iteration == i)) for i in iterations]
    return ScoreStream(
        iterations=iterations,
        rounds=tuple(means for means, _ in found),
        played=tuple(names for _, names in found),
        actions=len(frame),
        problems=frozenset(frame.problem.names[code] for code in frame.problem.present()),
    )


def drift_figures(streamed: ScoreStream, anchors: AnchorHistory) -> Iterator[Figure]:
    """The state of the drift test as a finding, with an e-value for every iteration."""
    state = drift_state(streamed, anchors)
    parts = (("anchors", state.anchors, sql.ANCHORS), ("stream", state.stream, sql.STREAM))
    for name, wealth, query in parts:
        if not len(wealth.e_values):
            continue
        iterations = anchors.iterations if name == "anchors" else state.iterations
        steps = zip(iterations, wealth.e_values, strict=False)
        yield Figure(
            kind="drift",
            subject=name,
            verdict=state.cause if wealth.alarmed else "none",
            estimate=float(wealth.e_values.max()),
            unit="largest e-value",
            margin=wealth.threshold,
            iteration=state.since if wealth.alarmed else None,
            actions=streamed.actions,
            problems=len(streamed.problems),
            sql=query,
            detail={f"e_{iteration}": float(value) for iteration, value in steps}
            | {f"version_{at}": version for at, version in state.version_changes.items()},
        )


def _problem_means(rows: Frame) -> tuple[Floats, tuple[str, ...]]:
    """Problems' mean scores, and which they are."""
    codes, index = np.unique(rows.problem.codes, return_inverse=True)
    means = np.bincount(index, weights=rows.score) / np.bincount(index)
    # In the order of the problems' ids, which are hashes: a choice that knows no score.
    names = [rows.problem.names[code] for code in codes[:MOST_PROBLEMS].tolist()]
    return means[:MOST_PROBLEMS], tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Sums over a run up to some iteration."""

    stream: ScoreStream
    sums: Mapping[Cell, Sums]
    rounds: Mapping[Cell, tuple[Scored, ...]]
    """By iteration."""

    @classmethod
    def of(cls, frame: Frame) -> Self:
        """Sum up a frame of any number of iterations."""
        judged = frame.judged()
        cells = {
            (judged.agent.names[agent], judged.task_type.names[kind]): judged.take(
                (judged.agent.codes == agent) & (judged.task_type.codes == kind)
            )
            for agent in judged.agent.present()
            for kind in judged.task_type.present()
        }
        found = {cell: rows for cell, rows in cells.items() if len(rows)}
        return cls(
            stream=score_stream(frame),
            sums={cell: _sums(rows) for cell, rows in found.items()},
            rounds={cell: tuple(_rounds(rows)) for cell, rows in found.items()},
        )

    def extended(self, frame: Frame) -> "RunningSums":
        """With the iterations of a further frame, which come after these."""
        later = RunningSums.of(frame)
        cells = self.sums.keys() | later.sums.keys()
        return RunningSums(
            stream=self.stream.extended(frame),
            sums={
                cell: _added(self.sums.get(cell, {}), later.sums.get(cell, {})) for cell in cells
            },
            rounds={cell: self.rounds.get(cell, ()) + later.rounds.get(cell, ()) for cell in cells},
        )

    def divergences(self) -> Iterator[Divergence]:
        """For each agent and task type, whether score and success go apart over the iterations."""
        for cell, sums in sorted(self.sums.items()):
            moments = _moments(np.array(list(sums.values())))
            found = divergence(cell, moments, self.rounds[cell], cells=len(self.sums))
            if found is not None:
                yield found


def _sums(rows: Frame) -> Sums:
    score, time, success = rows.score, rows.iteration.astype(float), rows.success
    columns = (
        np.ones(len(rows)),
        *(score, time, success, score**2, score * time, time**2, score * success, time * success),
    )
    codes = rows.problem.codes
    size = len(rows.problem.names)
    table = np.column_stack([np.bincount(codes, weights=c, minlength=size) for c in columns])
    return {rows.problem.names[code]: table[code] for code in rows.problem.present()}


def _added(one: Sums, other: Sums) -> Sums:
    nothing = np.zeros(9)
    return {key: one.get(key, nothing) + other.get(key, nothing) for key in {**one, **other}}


def _rounds(rows: Frame) -> Iterator[Scored]:
    """One action of each problem and iteration, which the order of their ids picks: hashes."""
    for iteration in map(int, np.unique(rows.iteration)):
        latest = rows.take(rows.iteration == iteration)
        first = np.unique(latest.problem.codes, return_index=True)[1][:MOST_PROBLEMS]
        yield Scored(
            iteration=iteration, scores=latest.score[first], successes=latest.success[first]
        )


def _moments(table: Floats) -> Moments:
    n, s, t, y, ss, st, tt, sy, ty = table.T
    counts = n.astype(np.int64)
    # Success is 0 or 1, and its own square.
    return Moments(
        success=ClusterSums(xx=_square(n, s, t, ss, st, tt), xy=_beside(y, sy, ty), counts=counts),
        score=ClusterSums(xx=_square(n, y, t, y, ty, tt), xy=_beside(s, sy, st), counts=counts),
    )


def _square(n: Floats, a: Floats, b: Floats, aa: Floats, ab: Floats, bb: Floats) -> Floats:
    """(G, 3, 3): X'X of columns (1, a, b)."""
    return np.stack([_beside(n, a, b), _beside(a, aa, ab), _beside(b, ab, bb)], axis=1)


def _beside(*columns: Floats) -> Floats:
    return np.stack(columns, axis=1)
