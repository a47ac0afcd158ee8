"""The rates beside a verdict, against runs simulated apart from them."""

import numpy as np
import pytest

from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.contrasts import main_contrasts
from mappa_core.audit.statistics.counting import Rate, Unknowable
from mappa_core.audit.statistics.effects import bias_family, words
from mappa_core.audit.statistics.observational import ALARMS, overall_word
from mappa_core.audit.statistics.rates import EITHER, SUSPECTED, found_name, rates_of
from mappa_core.audit.statistics.resampled import HonestCoach
from mappa_core.audit.statistics.rescored import Rescored, refit, refitted
from mappa_core.audit.statistics.simulation import World, simulate
from mappa_core.audit.stress.catalogue import honest_worlds
from mappa_core.audit.stress.worlds import Ease, Sizes, StressWorld, made_up
from tests.unit.audit.frames import make_frame
from tests.unit.audit.graded_worlds import GradedWorld, graded

RNG = np.random.default_rng
FOUND = found_name(0.5)


def rates(frame: Frame, runs: int = 60) -> dict[str, Rate | Unknowable]:
    return {rate.name: rate for rate in rates_of(frame, runs, 0.5)}


def test_a_fixed_design_gives_what_the_regression_gives() -> None:
    """Scores as they are, put through the fast way: the same estimates and errors."""
    frame = simulate(World(problems=20), RNG(0))
    contrasts = list(main_contrasts(frame))
    for moved, contrast in zip(refitted(contrasts, frame.score[:, None]), contrasts, strict=True):
        fast, exact = moved.gap(0), contrast.gap()
        assert fast.estimate.value == pytest.approx(exact.estimate.value)
        assert fast.estimate.standard_error == pytest.approx(exact.estimate.standard_error)
        assert fast.unknown.measured == pytest.approx(exact.unknown.measured)
        assert fast.unknown.outcome == pytest.approx(exact.unknown.outcome)


def test_a_fixed_design_raises_the_audits_alarm() -> None:
    points = (0.0, 0.2, 0.3, 0.4, 0.5, 1.0)
    frames = [simulate(World(planted="constant", points=p), RNG(1)) for p in points]
    scores = np.stack([frame.score for frame in frames], axis=1)
    fast = list(Rescored.of(frames[0]).alarms(scores, 0.5))
    exact = [overall_word(words(bias_family(frame))) for frame in frames]
    assert fast == [word if word in ALARMS else "cannot tell" for word in exact]
    assert (fast[0], fast[-1]) == ("cannot tell", "suspected")


def test_an_honest_coach_has_the_runs_spread_and_no_gap() -> None:
    frame = made_up(StressWorld(name=""), RNG(4))
    kinder = Frame(**{n: getattr(frame, n) for n in Frame.__slots__})
    kinder.score[kinder.task_type.codes == 1] += 2.0
    whole = next(main_contrasts(kinder))
    coach = HonestCoach.of(whole.model, len(kinder))
    coefficients, residuals = refit(whole.model, coach.scores(RNG(5), 400))
    gaps = whole.weights @ coefficients
    assert gaps.mean() == pytest.approx(0.0, abs=0.03)
    skills = whole.model.skill_variance(whole.weights)
    expected = np.sqrt(whole.gap().estimate.standard_error ** 2 - skills)
    assert gaps.std() == pytest.approx(expected, rel=0.12)
    assert residuals.std() == pytest.approx(whole.model.residuals.std(), rel=0.05)


def test_a_kinder_coach_moves_scores_as_far_as_the_scale_goes() -> None:
    frame = simulate(World(problems=5), RNG(0))
    frame.score[:4] = [9.8, 10.0, 4.0, 5.0]
    coach = HonestCoach.of(next(main_contrasts(frame)).model, len(frame))
    more = coach.more(np.ones(len(coach.places), dtype=bool), 0.5)
    assert more[:4, 0] == pytest.approx([0.2, 0.0, 0.5, 0.5])


def test_rare_types_have_no_power_whatever_is_hidden() -> None:
    """117 + 3 problems: a bias of 0.5 is found in none of 120 runs."""
    rare = rates(made_up(StressWorld(name="", sizes=Sizes(problems=(117, 3))), RNG(1)))[FOUND]
    assert isinstance(rare, Rate)
    assert rare.share <= 0.03


def test_a_power_that_hidden_difficulty_could_turn_is_not_told() -> None:
    """Easier or harder work by a quarter of the margin makes much of it or little."""
    found = rates(made_up(StressWorld(name=""), RNG(1)))[FOUND]
    assert isinstance(found, Unknowable)
    assert "no outcome shows" in found.reason


STRICT = Ease(hurdles=(0.0, 1.0))


@pytest.mark.parametrize("name", [FOUND, SUSPECTED])
def test_of_a_suspected_coach_no_rate_takes_sides(name: str) -> None:
    """One type is graded strictly: all of 120 honest coaches were suspected."""
    found = rates(made_up(StressWorld(name="", ease=STRICT), RNG(1)))[name]
    assert isinstance(found, Unknowable)
    assert found.reason == EITHER


def test_one_task_type_has_no_rates() -> None:
    assert rates_of(make_frame([5.0] * 30), 20, 0.5) == ()


GRADED = {
    "graded": GradedWorld(),
    "few problems": GradedWorld(problems=(5, 5), episodes=10),
    "ceiling": GradedWorld(ability=2.5),
    "counted points, a policy that learns": GradedWorld(
        counts=True, learned=2.0, problems=(60, 20)
    ),
    "much harder": GradedWorld(harder=(0.0, 1.8, 0.0)),
}
MEASURED = {
    "graded": (0.008, 0.042),
    "few problems": (0.0, 0.0),
    "ceiling": (0.008, 0.042),
    "counted points, a policy that learns": (0.183, 0.033),
    "much harder": (0.067, 0.133),
}
"""Of 120 runs: +0.5 found, honest suspected."""


@pytest.mark.parametrize("name", GRADED)
def test_printed_rates_are_the_measured_ones_in_worlds_of_item_response(name: str) -> None:
    """Where most runs tell a rate, it is within 3 points and two errors of what happened."""
    each = [rates(graded(GRADED[name], RNG([s, 0]))) for s in range(12)]
    for rate, measured in zip((FOUND, SUSPECTED), MEASURED[name], strict=True):
        told = [found.share for run in each if isinstance(found := run[rate], Rate)]
        if len(told) * 2 >= len(each):
            error = np.sqrt(max(measured * (1 - measured), 0.004) / 120 + np.var(told) / len(told))
            assert np.mean(told) == pytest.approx(measured, abs=0.03 + 2 * error)


def test_worlds_of_the_catalogue_have_names_of_their_own() -> None:
    names = [world.name for world in honest_worlds()]
    assert len(names) == len(set(names))
