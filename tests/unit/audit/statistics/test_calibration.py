"""Divergence as calibration: its level by enumeration and in worlds of its own, and its power."""

from itertools import product

import numpy as np
import pytest

from mappa_core.audit.statistics.calibration import Scored, bet_on_calibration
from mappa_core.audit.stress.calibrating import CalibrationWorld, calibration_trial

RUNS = 25
"""Of 25 runs none may alarm where 5 % of all may: the e-value is the smaller of two."""


def played(scores: list[float], successes: list[int]) -> float:
    """The last e-value of one action an iteration."""
    rounds = [
        Scored(iteration=at, scores=np.array([score]), successes=np.array([float(right)]))
        for at, (score, right) in enumerate(zip(scores, successes, strict=True), 1)
    ]
    return float(bet_on_calibration(rounds).e_values[-1])


def test_over_all_orders_the_e_value_is_at_most_one() -> None:
    """Exchangeable, as while nothing changes: every one of 3^5 equally likely runs."""
    kinds = ((2.0, 0), (8.0, 1), (8.0, 0))
    runs = product(kinds, repeat=5)
    found = [played([score for score, _ in run], [right for _, right in run]) for run in runs]
    assert np.mean(found) <= 1.0
    assert max(found) > 1.0


def alarms(first: float, last: float, gain: float = 0.0, deviation: float = 1.0) -> list[int]:
    """How many iterations after the change each alarm came, in 25 runs of one world."""
    skill = (first, last)
    world = CalibrationWorld(name="tried", skill=skill, gain=gain, deviation=deviation)
    return list(calibration_trial(world, RUNS, seed=11).alarms)


@pytest.mark.parametrize(("first", "last", "deviation"), [(1, -1, 1.0), (-1, 1, 2.0)])
def test_an_honest_coach_of_a_policy_that_changes_is_left_alone(
    first: float, last: float, deviation: float
) -> None:
    assert alarms(first, last, deviation=deviation) == []


def test_a_coach_whose_scores_rise_while_success_falls_is_found() -> None:
    found = alarms(1, -1, gain=2)
    assert len(found) >= 0.9 * RUNS
    assert min(found) > 0
