"""The rates beside a verdict, against runs simulated apart from them."""

import numpy as np
import pytest

from mappa_core.audit.statistics.contrasts import main_contrasts
from mappa_core.audit.statistics.effects import bias_family, words
from mappa_core.audit.statistics.observational import ALARMS, overall_word
from mappa_core.audit.statistics.rates import rates_of, refitted
from mappa_core.audit.statistics.simulated_coach import SimulatedCoach, refit
from mappa_core.audit.statistics.simulation import World, simulate
from mappa_core.audit.stress.worlds import Ease, Sizes, StressWorld, made_up
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
    assert even[0].share >= 0.5
    assert rare[0].share < 0.3
    assert [rate.share for rate in even[1:]] == pytest.approx([0, 0], abs=0.16)


@pytest.mark.parametrize("ease", [0.0, 3.0], ids=["in the middle", "at the ceiling"])
def test_a_kinder_coach_moves_the_scores_that_can_move(ease: float) -> None:
    frame = made_up(StressWorld(name="", ease=Ease(types=(ease, ease))), RNG(2))
    model, rng = next(iter(main_contrasts(frame))).model, RNG(3)
    coach = SimulatedCoach.of(model, len(frame)).matched(model, rng)
    latent, favoured = coach.qualities(rng, 10), frame.task_type.codes[coach.places] == 1
    honest, kinder = coach.heaped(latent, latent), coach.kinder(latent, favoured, 0.5)
    moved = (kinder - honest)[coach.places]
    inside = (honest > 0) & (honest < 10)
    assert not moved[~favoured].any()
    expected = 0.5 * inside[coach.places][favoured].mean()
    assert moved[favoured].mean() == pytest.approx(expected, rel=0.05)


def test_a_simulated_coach_has_the_runs_slopes() -> None:
    frame = made_up(StressWorld(name=""), RNG(4))
    model, rng = next(iter(main_contrasts(frame))).model, RNG(5)
    coach = SimulatedCoach.of(model, len(frame)).matched(model, rng)
    felt = coach.qualities(rng, 40)
    coefficients = refit(model, coach.heaped(felt, felt))[0].mean(axis=1)
    for name in ("skill", "outcome:right"):
        weights = model.where((name, 1.0))
        run = float(weights @ model.fitted.coefficients)
        assert float(weights @ coefficients) == pytest.approx(run, abs=0.1)


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
