"""What if another coach had scored? Advantages worked out again from stored second scores."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Mask

DIFFERENT_COSINE = 0.9
"""Below this likeness of its advantages, an update would have differed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherUpdate:
    """One agent's update of one iteration, under the coach it had and under another."""

    agent: str
    iteration: int
    actions: int
    """That both coaches scored."""
    flipped: int
    """Whose advantage has the other sign."""
    likeness: float
    """Weighted cosine of the two sets of advantages; 1 is the same update, up to its length."""

    @property
    def differs(self) -> bool:
        """Whether the update would have pulled elsewhere."""
        return self.likeness < DIFFERENT_COSINE


def other_updates(frame: Frame, other: Floats, *, by_problem: bool) -> Iterator[OtherUpdate]:
    """Each update as another coach's scores would have made it.

    Args:
        frame: The run's actions.
        other: (N,) the other coach's scores of the same rows, NaN where there is none.
        by_problem: Whether advantages are relative to the problem's mean score.
    """
    both = ~np.isnan(frame.score) & ~np.isnan(other) & ~np.isnan(frame.advantage)
    for agent in frame.agent.present():
        for iteration in np.unique(frame.iteration[both & (frame.agent.codes == agent)]):
            rows = both & (frame.agent.codes == agent) & (frame.iteration == iteration)
            yield _other(frame, other, rows, by_problem=by_problem)


def advantages(scores: Floats, problems: np.ndarray, weight: Floats) -> Floats:
    """(score - baseline - mean) / deviation over one update; all 0 where nothing varies."""
    _, index = np.unique(problems, return_inverse=True)
    centred = scores - (np.bincount(index, weights=scores) / np.bincount(index))[index]
    share = weight / weight.sum() if weight.sum() > 0 else np.full(len(weight), 1 / len(weight))
    centred = centred - (share * centred).sum()
    deviation = float(np.sqrt((share * centred**2).sum()))
    return centred / deviation if deviation > ROUNDING else np.zeros_like(centred)


ROUNDING = 1e-9


def _other(frame: Frame, other: Floats, rows: Mask, *, by_problem: bool) -> OtherUpdate:
    problems = frame.problem.codes[rows]
    groups = problems if by_problem else np.zeros_like(problems)
    weight = frame.weight[rows]
    had = advantages(frame.score[rows], groups, weight)
    would = advantages(other[rows], groups, weight)
    length = float(np.sqrt((weight * had**2).sum() * (weight * would**2).sum()))
    return OtherUpdate(
        agent=frame.agent.names[int(frame.agent.codes[rows][0])],
        iteration=int(frame.iteration[rows][0]),
        actions=int(rows.sum()),
        flipped=int((had * would < 0).sum()),
        likeness=float((weight * had * would).sum()) / length if length > 0 else 1.0,
    )
