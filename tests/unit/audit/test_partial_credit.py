"""The experiment in worlds of a partial-credit coach: its verdicts and what it prints of them."""

import numpy as np
import pytest

from mappa_core.audit.statistics.counting import Rate
from mappa_core.audit.statistics.experiment_rates import experiment_rates
from mappa_core.audit.statistics.paired import experiment_effects, experiment_verdict
from tests.unit.audit.partial_credit_worlds import CreditWorld, Told, experiment

FIVE = CreditWorld(problems=(14, 9, 17, 8, 12))
TWO = CreditWorld(problems=(22, 16))
EASY = CreditWorld(problems=(20, 20, 20), base=(8.5, 7.0))


def points(size: float) -> Told:
    return lambda told, agent, success: size * (told == 1)


def opposed(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return np.where(agent == success, 1.5, -1.5) * (told == 1)


def biased(world: CreditWorld, favour: Told, runs: int, seed: int) -> float:
    asked = (experiment(world, favour, np.random.default_rng([seed, run])) for run in range(runs))
    return float(np.mean([experiment_verdict(experiment_effects(e)) == "biased" for e in asked]))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [FIVE, TWO, EASY], ids=["five types", "two", "easy"])
def test_verdicts_and_printed_rates_hold_for_a_partial_credit_coach(world: CreditWorld) -> None:
    runs = 80
    alarms, found = (biased(world, points(size), runs, 1) for size in (0.0, 0.5))
    # 5 %, and what is printed within 3 points, both beside two or three standard errors.
    assert alarms <= 0.05 + 2 * 0.025
    assert biased(world, points(1.0), 20, 2) >= 0.9
    assert biased(world, opposed, 20, 3) >= 0.9
    rates = [
        experiment_rates(experiment(world, points(0.0), np.random.default_rng([4, run])), 60, 0.5)
        for run in range(10)
    ]
    for place, happened in enumerate((alarms, found)):
        told = [rate.share for each in rates if isinstance(rate := each[place], Rate)]
        if told:
            error = (happened * (1 - happened) / runs + 1 / (4 * 60 * len(told))) ** 0.5
            assert abs(np.mean(told) - happened) <= 0.03 + 2 * max(error, 0.02)
