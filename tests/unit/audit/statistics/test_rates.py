"""The rates beside a verdict, against runs simulated apart from them."""

import numpy as np
import pytest

from mappa_core.audit.statistics.contrasts import main_contrasts
from mappa_core.audit.statistics.effects import bias_family, words
from mappa_core.audit.statistics.observational import ALARMS, overall_word
from mappa_core.audit.statistics.rates import rates_of, refitted
from mappa_core.audit.statistics.simulation import World, simulate
from mappa_core.audit.stress.worlds import Sizes, StressWorld, made_up
from tests.unit.audit.frames import make_frame

RNG = np.random.default_rng


def test_a_fixed_design_gives_what_the_regression_gives() -> None:
    """Scores as they are, put through the fast way: the same estimates and errors."""
    frame = simulate(World(problems=20), RNG(0))
    contrasts = list(main_contrasts(frame))
    for gaps, contrast in zip(refitted(contrasts, frame.score[:, None]), contrasts, strict=True):
        (fast,), exact = gaps, contrast.gap()
        assert fast.estimate.value == pytest.approx(exact.estimate.value)
        assert fast.estimate.standard_error == pytest.approx(exact.estimate.standard_error)
        assert fast.unknown.measured == pytest.approx(exact.unknown.measured)
        assert fast.unknown.outcome == pytest.approx(exact.unknown.outcome)


def test_rare_types_have_little_power() -> None:
    """Measured with 117 + 3 problems: a bias of 0.5 is found in some 4 %."""
    even, rare = (
        rates_of(made_up(StressWorld(name="", sizes=Sizes(problems=sizes)), RNG(1)), 20, 0.5)
        for sizes in ((60, 60), (117, 3))
    )
    assert even[0].share > 0.6
    assert rare[0].share < 0.3
    assert [rate.share for rate in even[1:]] == pytest.approx([0, 0], abs=0.16)


def test_one_task_type_has_no_rates() -> None:
    assert rates_of(make_frame([5.0] * 30), 20, 0.5) == ()


@pytest.mark.slow
def test_printed_power_is_the_measured_one() -> None:
    world = World(problems=30)
    printed = np.mean([rates_of(simulate(world, RNG(s)), 20, 0.5)[0].share for s in range(40)])
    planted = World(problems=30, planted="constant", points=0.5)
    found = [
        overall_word(words(bias_family(simulate(planted, RNG([1, s]))))) in ALARMS
        for s in range(200)
    ]
    assert printed == pytest.approx(np.mean(found), abs=0.1)
