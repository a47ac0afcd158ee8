"""Short simulations here; the 1,000-run measurement is slow."""

import time

import numpy as np
import pytest

from mappa_core.audit.statistics.selftest import (
    any_alarm,
    false_alarms_at,
    measured_rate,
    power_at,
    self_test,
    shape_of,
)
from mappa_core.audit.statistics.simulation import World, simulate


def test_every_promise_survives_a_short_look() -> None:
    rates = self_test(12, seed=1)
    assert len({rate.name for rate in rates}) == 11
    assert all(rate.kept for rate in rates), [rate for rate in rates if not rate.kept]


def test_a_rate_that_breaks_its_promise_says_so() -> None:
    never = measured_rate("n", lambda rng: False, "power", 100, np.random.default_rng(0))
    always = measured_rate("a", lambda rng: True, "level", 100, np.random.default_rng(0))
    assert (never.kept, always.kept) == (False, False)
    assert (never.share, always.share) == (0.0, 1.0)
    # Clopper and Pearson: 1 - 0.025 ** (1 / 100).
    assert never.interval()[1] == pytest.approx(1 - 0.025**0.01)


def test_the_shape_of_a_run_is_read_off() -> None:
    world = World(problems=100, actions=10, deviation=1.5, correlation=0.3)
    found = shape_of(simulate(world, np.random.default_rng(0)))
    assert (found.problems, found.actions, found.iterations) == (100, 10, 10)
    assert found.deviation == pytest.approx(1.5, abs=0.1)
    assert found.correlation == pytest.approx(0.3, abs=0.08)


def test_more_noise_means_less_power() -> None:
    quiet, loud = (power_at(World(deviation=d, problems=15), 25, 0.5) for d in (0.5, 3.0))
    assert quiet.share > loud.share
    assert false_alarms_at(World(problems=15), 25, 0.5).share < 0.3


@pytest.mark.slow
def test_the_audit_keeps_its_promises_over_a_thousand_runs() -> None:
    started = time.perf_counter()
    rates = self_test(1_000, seed=2)
    assert time.perf_counter() - started < 600
    assert all(rate.kept for rate in rates), [rate for rate in rates if not rate.kept]


@pytest.mark.slow
@pytest.mark.parametrize("problems", [10, 20, 30])
@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.3])
def test_the_level_holds_from_twenty_clusters_on(problems: int, correlation: float) -> None:
    world = World(problems=problems, actions=12, correlation=correlation)
    hits = sum(any_alarm(world, 0.5, np.random.default_rng([7, run])) for run in range(1_000))
    # The upper end of the 99 % range of a true 5 %.
    assert hits <= 68
