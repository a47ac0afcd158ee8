"""Short simulations here; the 1,000-run measurement is slow."""

import numpy as np
import pytest

from mappa_core.audit.statistics.selftest import (
    any_alarm,
    measured_rate,
    self_test,
)
from mappa_core.audit.statistics.simulation import World


def test_every_promise_survives_a_short_look() -> None:
    rates = self_test(12, seed=1)
    assert len({rate.name for rate in rates}) == 16
    assert all(rate.kept for rate in rates), [rate for rate in rates if not rate.kept]


def test_a_rate_that_breaks_its_promise_says_so() -> None:
    never = measured_rate("n", lambda rng: False, "power", 100, np.random.default_rng(0))
    always = measured_rate("a", lambda rng: True, "level", 100, np.random.default_rng(0))
    assert (never.kept, always.kept) == (False, False)
    assert (never.share, always.share) == (0.0, 1.0)
    # Clopper and Pearson: 1 - 0.025 ** (1 / 100).
    assert never.interval()[1] == pytest.approx(1 - 0.025**0.01)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_audit_keeps_its_promises_over_a_thousand_runs() -> None:
    rates = self_test(1_000, seed=2)
    assert all(rate.kept for rate in rates), [rate for rate in rates if not rate.kept]


@pytest.mark.slow
@pytest.mark.parametrize("problems", [10, 20, 30])
@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.3])
def test_the_level_holds_from_twenty_clusters_on(problems: int, correlation: float) -> None:
    world = World(problems=problems, actions=12, correlation=correlation)
    hits = sum(any_alarm(world, 0.5, np.random.default_rng([7, run])) for run in range(1_000))
    # The upper end of the 99 % range of a true 5 %.
    assert hits <= 68
