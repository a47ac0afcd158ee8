"""What a watch keeps of the iterations it has read: it grows with problems, not with actions.

    frame of one iteration ─▶ RunningSums.extended ─▶ drift of the stream, divergence of the score

Sums are enough: the regression of `trends.divergence` is a function of each problem's X'X and X'y,
so adding an iteration's gives the same figures as reading the whole run again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.statistics.health import HIGHEST
from mappa_core.audit.statistics.regression import ClusterSums
from mappa_core.audit.statistics.trends import Divergence, divergence
from mappa_core.audit.watch.history import ScoreStream, score_stream

Cell: TypeAlias = tuple[str, str]
"""Agent and task type."""
Sums: TypeAlias = Mapping[str, Floats]
"""By problem: (5,) actions, and the sums of t, t^2, d and t d for iteration t and gap d."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Sums over a run up to some iteration."""

    stream: ScoreStream
    sums: Mapping[Cell, Sums]
    iterations: Mapping[Cell, frozenset[int]]

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
            iterations={cell: frozenset(rows.iteration.tolist()) for cell, rows in found.items()},
        )

    def extended(self, frame: Frame) -> "RunningSums":
        """With the iterations of a further frame, which come after these."""
        later, none = RunningSums.of(frame), frozenset[int]()
        cells = self.sums.keys() | later.sums.keys()
        before, after = self.iterations, later.iterations
        return RunningSums(
            stream=self.stream.extended(frame),
            sums={
                cell: _added(self.sums.get(cell, {}), later.sums.get(cell, {})) for cell in cells
            },
            iterations={cell: before.get(cell, none) | after.get(cell, none) for cell in cells},
        )

    def divergences(self) -> Iterator[Divergence]:
        """For each agent and task type, whether score and success go apart over the iterations."""
        for cell, sums in sorted(self.sums.items()):
            table = np.array(list(sums.values()))
            span = max(self.iterations[cell]) - min(self.iterations[cell])
            found = divergence(*cell, _cluster_sums(table), span=span)
            if found is not None:
                yield found


def _sums(rows: Frame) -> Sums:
    time = rows.iteration.astype(float)
    gap = rows.score / HIGHEST - rows.success
    columns = (np.ones(len(rows)), time, time**2, gap, time * gap)
    codes = rows.problem.codes
    size = len(rows.problem.names)
    table = np.column_stack([np.bincount(codes, weights=c, minlength=size) for c in columns])
    return {rows.problem.names[code]: table[code] for code in rows.problem.present()}


def _added(one: Sums, other: Sums) -> Sums:
    nothing = np.zeros(5)
    return {key: one.get(key, nothing) + other.get(key, nothing) for key in {**one, **other}}


def _cluster_sums(table: Floats) -> ClusterSums:
    count, time, square, gap, product = table.T
    xx = np.stack([np.stack([count, time], axis=1), np.stack([time, square], axis=1)], axis=1)
    return ClusterSums(xx=xx, xy=np.stack([gap, product], axis=1), counts=count.astype(np.int64))
