"""Divergence as calibration: its level by enumeration and in worlds of its own, and its power."""

from itertools import product

import numpy as np
import pytest

from mappa_core.audit.statistics.calibration import Scored, bet_on_calibration

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


def world(
    rng: np.random.Generator, first: float, last: float, gain: float = 0.0, noise: float = 1.0
) -> list[Scored]:
    """40 iterations of 16 of 120 problems: skill goes from one logit to the other and drives
    score and outcome; from the 21st on the score has `gain` points more, in whole points."""
    hard, rounds = rng.normal(0, 1.2, 120), list[Scored]()
    for at, skill in enumerate(np.linspace(first, last, 40)):
        quality = skill - hard[rng.choice(120, 16, replace=False)] + rng.normal(0, 1, 16)
        right = rng.random(16) < 1 / (1 + np.exp(-2 * quality))
        raw = 5.5 + 1.3 * quality + rng.normal(0, noise, 16) + gain * (at >= 20)
        scores = np.round(raw).clip(0, 10)
        rounds.append(Scored(iteration=at + 1, scores=scores, successes=right.astype(float)))
    return rounds


def alarms(first: float, last: float, gain: float = 0.0, noise: float = 1.0) -> list[int]:
    """The iterations of the alarms in 25 runs of one cell."""
    rng = np.random.default_rng(11)
    found = (bet_on_calibration(world(rng, first, last, gain, noise)).alarm for _ in range(RUNS))
    return [alarm for alarm in found if alarm is not None]


@pytest.mark.parametrize(("first", "last", "noise"), [(1, -1, 1.0), (-1, 1, 2.0)])
def test_an_honest_coach_of_a_policy_that_changes_is_left_alone(
    first: float, last: float, noise: float
) -> None:
    assert alarms(first, last, noise=noise) == []


def test_a_coach_whose_scores_rise_while_success_falls_is_found() -> None:
    found = alarms(1, -1, gain=2)
    assert len(found) >= 0.9 * RUNS
    assert min(found) >= 20
