"""Small frames; every argument is what the test is about."""

from collections.abc import Sequence

import numpy as np

from mappa_core.audit.frame import Factor, Frame


def make_frame(
    score: Sequence[float],
    *,
    task_type: Sequence[str] | None = None,
    problem: Sequence[str] | None = None,
    agent: Sequence[str] | None = None,
    episode: Sequence[int] | None = None,
    iteration: Sequence[int] | None = None,
    turn: Sequence[int] | None = None,
    level: Sequence[int] | None = None,
    success: Sequence[float] | None = None,
    advantage: Sequence[float] | None = None,
    weight: Sequence[float] | None = None,
    unparsed: Sequence[bool] | None = None,
    cut_off: Sequence[bool] | None = None,
) -> Frame:
    count = len(score)
    return Frame(
        score=np.array(score, dtype=float),
        unparsed=np.array(unparsed or [False] * count, dtype=bool),
        task_type=Factor.of(task_type or ["a"] * count),
        agent=Factor.of(agent or ["solver"] * count),
        problem=Factor.of(problem or [str(i) for i in range(count)]),
        episode=np.array(episode or range(count)),
        iteration=np.array(iteration or [1] * count),
        turn=np.array(turn or [0] * count),
        level=np.array(level or [1] * count),
        tokens=np.full(count, 10),
        tool_used=np.zeros(count, dtype=bool),
        tool_failed=np.zeros(count, dtype=bool),
        success=np.array(success or [1.0] * count, dtype=float),
        advantage=np.array(advantage or [np.nan] * count, dtype=float),
        weight=np.array(weight or [1 / count] * count, dtype=float),
        cut_off=np.array(cut_off or [False] * count, dtype=bool),
    )
