"""What actions were credited with: their own scores, or what came of them (`algorithm.credit`).

    action    its own score
    return    that and the agent's later ones of the episode, discounted for each action between
    team      the mean of its own and all later ones of the episode, of any agent

Scores that did not count add nothing. All three are linear in the scores, so that what a bias made
of a credit is the credit of the bias.
"""

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Ints, Mask
from mappa_core.audit.records import CreditRule


def credited(frame: Frame, points: Floats, rule: CreditRule) -> Floats:
    """(N,) what each action is credited with.

    Args:
        frame: All the run's actions.
        points: (N,) what a coach gives them; NaN where it gives nothing.
        rule: What they are held to account for.

    Returns:
        NaN where one of the points that are part of it is missing.
    """
    if rule.credit == "action":
        return points
    counts = _counts(frame)
    counted: Floats = np.where(counts, points, 0.0)
    if rule.credit == "return":
        return _to_come(_groups(frame), frame.turn, counted, rule.discount)
    sums, sizes = (
        _to_come(frame.episode, frame.turn, each) for each in (counted, counts.astype(np.float64))
    )
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)


def visits(frame: Frame) -> Ints:
    """(N,) how many actions the agent had before in the same episode."""
    return _places(_groups(frame), frame.turn)


def _counts(frame: Frame) -> Mask:
    return ~np.isnan(frame.score) & (frame.tokens > 0) & ~frame.cut_off


def _groups(frame: Frame) -> Ints:
    """(N,) numbers of each agent's part of each episode."""
    episode = np.unique(frame.episode, return_inverse=True)[1]
    return episode * len(frame.agent.names) + frame.agent.codes


def _places(group: Ints, turn: Ints) -> Ints:
    """(N,) places within a group, from 0, by turn."""
    order = np.lexsort((turn, group))
    _, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    place = np.empty(len(group), dtype=np.int64)
    place[order] = np.arange(len(group)) - np.repeat(starts, counts)
    return place


def _to_come(group: Ints, turn: Ints, values: Floats, discount: float = 1.0) -> Floats:
    """(N,) each value and the later ones of its group, discounted for each place between."""
    code, place = np.unique(group, return_inverse=True)[1], _places(group, turn)
    found, sums = np.empty(len(values)), np.zeros(int(code.max(initial=-1)) + 1)
    for at in range(int(place.max(initial=-1)), -1, -1):
        rows = place == at
        sums[code[rows]] = values[rows] + discount * sums[code[rows]]
        found[rows] = sums[code[rows]]
    return found
