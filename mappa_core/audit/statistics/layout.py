"""Which levels, turns and iterations a run has, as its regressions need them."""

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Ints

WINDOWS = 4


def windows(iteration: Ints, count: int = WINDOWS) -> tuple[tuple[int, int], ...]:
    """First and last of each quarter of the iterations, or of each of `count` parts."""
    parts = np.array_split(numbers := np.unique(iteration), min(count, max(len(numbers), 1)))
    return tuple((int(part[0]), int(part[-1])) for part in parts if len(part))


def linked(kind: Ints, group: Ints) -> bool:
    """Whether each task type is linked with every other by groups that both have, or others do."""
    table = np.zeros((int(kind.max(initial=0)) + 1, int(group.max(initial=0)) + 1), dtype=bool)
    table[kind, group] = True
    table = table[table.any(axis=1)]
    reached = np.arange(len(table)) == 0
    for _ in table:
        reached |= table[:, table[reached].any(axis=0)].any(axis=1)
    return bool(reached.all())


def agent_turns(frame: Frame) -> list[tuple[int, int]]:
    """Agent and turn pairs that occur, in playing order."""
    width = len(frame.agent.names)
    pairs = np.unique(frame.turn * width + frame.agent.codes)
    return [(int(pair % width), int(pair // width)) for pair in pairs]


def scaled(iteration: np.ndarray) -> tuple[Floats, str]:
    """Iterations as 0 (first) to 1 (last), and in SQL."""
    first, last = int(iteration.min()), int(iteration.max())
    span = max(last - first, 1)
    return (iteration - first) / span, f"((iteration - {first}) / {span}::float8)"
