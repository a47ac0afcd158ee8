"""The rates beside an experiment, against experiments made apart from them."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mappa_core.audit.frame import Experiment
from mappa_core.audit.statistics.counting import Rate, Unknowable
from mappa_core.audit.statistics.experiment_rates import experiment_rates
from mappa_core.audit.statistics.paired import experiment_effects, experiment_verdict
from tests.unit.audit.experiment_worlds import Told, make_experiment

RNG = np.random.default_rng


def kind_to_b(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return 0.5 * (told == 1)


def honest(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return np.zeros(len(told))


def told(experiment: Experiment, seed: int = 0) -> list[float]:
    """The shares of both rates; NaN for one that is not known."""
    rates = experiment_rates(experiment, 50, 0.5, seed)
    assert len(rates) == 2
    return [rate.share if isinstance(rate, Rate) else np.nan for rate in rates]


@pytest.mark.parametrize(
    ("heaps", "actions", "level"), [(range(11), 60, 6.0), ((0, 5, 7, 10), 120, 4.5)]
)
def test_answers_dealt_anew_are_wrong_as_often_as_experiments_are(
    heaps: Sequence[int], actions: int, level: float
) -> None:
    """So many actions find half a point in a third or half of experiments: the hardest rates."""

    def made(seed: list[int], favour: Told) -> Experiment:
        return make_experiment(RNG(seed), favour, actions=actions, level=level, heaps=heaps)

    shares = np.nanmean([told(made([s, 0], honest), s) for s in range(20)], axis=0)
    biased = [made([s, 1], kind_to_b) for s in range(300)]
    found = np.mean([experiment_verdict(experiment_effects(e)) == "biased" for e in biased])
    assert shares[0] <= 0.08
    # Two standard errors of 300 experiments, and of twenty printed rates, beside 3 points.
    assert abs(shares[1] - found) <= 0.03 + 2 * 0.035


def test_a_name_that_is_worth_something_else_on_each_problem_takes_power() -> None:
    def made(seed: list[int], favour: Told) -> Experiment:
        return make_experiment(RNG(seed), favour, actions=200, problems=60, level=6.0, uneven=1.0)

    shares = [told(made([s, 2], honest), s) for s in range(12)]
    biased = [made([s, 3], kind_to_b) for s in range(100)]
    found = np.mean([experiment_verdict(experiment_effects(e)) == "biased" for e in biased])
    assert abs(np.nanmean(shares, axis=0)[1] - found) <= 0.03 + 2 * 0.07


def test_a_coach_that_favours_a_type_has_the_rates_of_an_honest_one() -> None:
    alarm, power = told(make_experiment(RNG(1), kind_to_b, actions=200, level=5.5))
    assert alarm <= 0.1
    assert power >= 0.7


def test_a_power_that_the_end_of_the_scale_hides_is_not_told() -> None:
    """Half of the easy type's work gets 10: what half a point more would show is not known."""
    rates = experiment_rates(make_experiment(RNG(3), honest, actions=100, level=10.0), 50, 0.5)
    assert isinstance(rates[0], Rate)
    assert isinstance(rates[1], Unknowable)
    assert "end of the scale" in rates[1].reason


def test_a_power_is_not_told_where_a_name_makes_scores_go_missing() -> None:
    """Whether a coach that is kinder to b is found goes by which of its scores are there."""
    lossy = make_experiment(RNG(4), honest, actions=200, level=5.5, low_lost=0.5)
    alarm, power = experiment_rates(lossy, 50, 0.5)
    assert isinstance(alarm, Rate)
    assert isinstance(power, Unknowable)
    assert re.fullmatch(
        r"scores are missing of 0% called a and \d\d% called b, and a bias may move which",
        power.reason,
    )


def test_a_power_is_told_where_scores_go_missing_whatever_the_work_is_called() -> None:
    lossy = [make_experiment(RNG([s, 5]), honest, actions=100, lost=0.1) for s in range(20)]
    known = [isinstance(experiment_rates(each, 20, 0.5)[1], Rate) for each in lossy]
    assert sum(known) >= 17


def test_no_power_is_told_of_a_coach_that_does_not_see_what_work_is_called() -> None:
    """As the rule coach: 0 % would say that a bias is missed which it cannot have."""
    made = make_experiment(RNG(5), honest, actions=100, level=5.5)
    renamed = made.change.codes == made.change.names.index("task type")
    alarm, power = experiment_rates(replace(made, unseen=renamed), 20, 0.5)
    assert isinstance(alarm, Rate)
    assert isinstance(power, Unknowable)
    assert power.reason.startswith("the coach is not told what work is called")


def test_nothing_asked_has_no_rates() -> None:
    assert experiment_rates(make_experiment(RNG(2), honest, actions=0), 20, 0.5) == ()


@pytest.mark.parametrize("level", [4.5, 30.0])
@pytest.mark.parametrize("actions", [2, 4, 8])
def test_an_experiment_too_small_for_an_error_has_rates(actions: int, level: float) -> None:
    """So few pairs, or the same score in all of them, have no standard error."""
    for seed in range(5):
        tiny = make_experiment(RNG([seed, 6]), honest, actions=actions, problems=3, level=level)
        alarm, *_ = experiment_rates(tiny, 20, 0.5)
        assert isinstance(alarm, Rate)
