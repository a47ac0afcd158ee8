"""What a watch keeps of the iterations it has read.

    frames, one iteration each ─▶ RunningSums ─▶ drift of the stream, divergence of the score

Sums grow with problems, not with actions, and are enough: the regression of `trends.divergence` is
a function of each problem's X'X and X'y, so adding an iteration's gives the same figures as reading
the whole run again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.statistics.calibration import Scored
from mappa_core.audit.statistics.regression import ClusterSums
from mappa_core.audit.statistics.trends import Divergence, Moments, divergence

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
    task_types: frozenset[str]

    def extended(self, frame: Frame) -> "ScoreStream":
        """With the iterations of a further frame, which come after these."""
        later = score_stream(frame)
        return ScoreStream(
            iterations=self.iterations + later.iterations,
            rounds=self.rounds + later.rounds,
            played=self.played + later.played,
            actions=self.actions + later.actions,
            problems=self.problems | later.problems,
            task_types=self.task_types | later.task_types,
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
        task_types=frozenset(frame.task_type.names[code] for code in frame.task_type.present()),
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
