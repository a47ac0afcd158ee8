"""What the bias did to the policy: its share of each update's advantage (who grew: `design`).

Advantages are linear in the scores up to the normaliser, so each splits into what the bias made
of it and the rest. For one agent's update with scores s, estimated bias b and centring C (by
problem where the baseline is the group's, by batch otherwise),

    A = k C(s),   A_bias = k C(b),   share = sum w A_bias A / sum w A^2

k is what the estimator scales by, and is read off the advantages (least squares): 1 / sd for
REINFORCE++, a constant where nothing normalises, for GRPO its mean over the problems.

A bias that all of a problem's actions share is taken away by the group baseline: its share is
zero, and what is left of it is what differs within a problem.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBias:
    """One agent's update of one iteration."""

    agent: str
    iteration: int
    share: float
    """Of the advantages' weighted square that goes with the bias; may be below 0 where the bias
    worked against what was learned."""
    pull: float
    """Sum of weight times the bias's advantage over the favoured actions: above 0, the bias made
    them likelier."""
    actions: int


def update_shares(frame: Frame, bias: Floats, *, by_problem: bool) -> Iterator[UpdateBias]:
    """The bias's part in every update.

    Args:
        frame: Actions with scores, advantages and weights.
        bias: (N,) points the coach gave too much.
        by_problem: Whether the advantages are relative to the problem's mean score.
    """
    counted = ~np.isnan(frame.advantage) & ~np.isnan(frame.score)
    for agent in frame.agent.present():
        for iteration in np.unique(frame.iteration[frame.agent.codes == agent]):
            rows = counted & (frame.agent.codes == agent) & (frame.iteration == iteration)
            if rows.any():
                yield _update(frame, bias, rows, by_problem=by_problem)


def _update(frame: Frame, bias: Floats, rows: Mask, *, by_problem: bool) -> UpdateBias:
    weight = frame.weight[rows] / max(frame.weight[rows].sum(), 1e-300)
    groups = frame.problem.codes[rows] if by_problem else np.zeros(int(rows.sum()), dtype=np.int64)
    scores = _centred(frame.score[rows], groups, weight)
    part = _centred(bias[rows], groups, weight)
    advantage = frame.advantage[rows]
    variance = float((weight * scores**2).sum())
    scale = float((weight * scores * advantage).sum()) / variance if variance > 0 else 0.0
    of_bias = scale * part
    square = float((weight * advantage**2).sum())
    favoured = bias[rows] > 0
    return UpdateBias(
        agent=frame.agent.names[int(frame.agent.codes[rows][0])],
        iteration=int(frame.iteration[rows][0]),
        share=float((weight * of_bias * advantage).sum()) / square if square > 0 else 0.0,
        pull=float((weight * of_bias)[favoured].sum()),
        actions=int(rows.sum()),
    )


def _centred(values: Floats, groups: np.ndarray, weight: Floats) -> Floats:
    """Less the group's mean, then less the batch's weighted mean."""
    _, index = np.unique(groups, return_inverse=True)
    means = np.bincount(index, weights=values) / np.bincount(index)
    centred = values - means[index]
    return centred - (weight * centred).sum()
