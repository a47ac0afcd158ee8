"""Each estimator on the same four actions of two problems, worked by hand."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from mappa_core.core.ids import problem_id
from mappa_core.train import estimators
from mappa_core.train.batches import token_weights
from mappa_core.train.estimators import (
    ESTIMATORS,
    EstimatorName,
    Rewards,
    group_baseline,
    normalise,
)

A, B = problem_id("a"), problem_id("b")
# Problem a: 1.0, 0.4, 0.4 (mean 0.6); problem b: 0.2, 0.8 (mean 0.5).
REWARDS = [1.0, 0.4, 0.4, 0.2, 0.8]
PROBLEMS = [A, A, A, B, B]


def rewards(penalties: list[float] | None = None, lengths: list[int] | None = None) -> Rewards:
    lengths = lengths or [1] * 5
    return Rewards(
        rewards=torch.tensor(REWARDS, dtype=torch.float64),
        problems=PROBLEMS,
        penalties=torch.tensor(penalties or [0.0] * sum(lengths), dtype=torch.float64),
        lengths=torch.tensor(lengths),
        weights=token_weights(lengths, "samples"),
    )


def values(estimator: Callable[[Rewards], torch.Tensor]) -> list[float]:
    return estimator(rewards()).tolist()


def test_reinforce_takes_the_reward_as_it_is() -> None:
    assert values(estimators.reinforce) == REWARDS


def test_reinforce_plus_plus_takes_the_batch_mean_and_deviation() -> None:
    # mean 2.8 / 5 = 0.56; squares .1936 + .0256 + .0256 + .1296 + .0576 = .432; / 5 = .0864
    deviation = 0.0864**0.5
    expected = [0.44, -0.16, -0.16, -0.36, 0.24]
    assert values(estimators.reinforce_plus_plus) == pytest.approx(
        [value / deviation for value in expected]
    )


def test_its_baseline_variant_takes_the_problems_mean_and_the_batch_deviation() -> None:
    # .4, -.2, -.2, -.3, .3: mean 0, squares .16 + .04 + .04 + .09 + .09 = .42; / 5 = .084
    deviation = 0.084**0.5
    assert values(estimators.reinforce_plus_plus_baseline) == pytest.approx(
        [value / deviation for value in (0.4, -0.2, -0.2, -0.3, 0.3)]
    )


def test_rloo_takes_the_mean_of_the_others() -> None:
    # a: 1 - .4, .4 - .7, .4 - .7; b: .2 - .8, .8 - .2
    assert values(estimators.rloo) == pytest.approx([0.6, -0.3, -0.3, -0.6, 0.6])


def test_grpo_takes_the_problems_mean_and_sample_deviation() -> None:
    # Variances: of a (.16 + .04 + .04) over 2, of b (.09 + .09) over 1.
    a, b = 0.12**0.5, 0.18**0.5
    assert values(estimators.grpo) == pytest.approx(
        [0.4 / a, -0.2 / a, -0.2 / a, -0.3 / b, 0.3 / b]
    )


def test_dr_grpo_takes_the_problems_mean_alone() -> None:
    assert values(estimators.dr_grpo) == pytest.approx([0.4, -0.2, -0.2, -0.3, 0.3])


def test_the_kl_to_come_is_taken_off_each_token() -> None:
    given = rewards(penalties=[0.3, 0.1, 0.0, 0.0, 0.0, 0.0], lengths=[2, 1, 1, 1, 1])
    assert estimators.reinforce(given).tolist() == pytest.approx([0.7, 0.9, 0.4, 0.4, 0.2, 0.8])
    assert estimators.dr_grpo(given).tolist()[:2] == pytest.approx([0.1, 0.3])


def test_the_table_has_every_name_that_a_configuration_may_say() -> None:
    assert tuple(ESTIMATORS) == get_args(EstimatorName)


@pytest.mark.parametrize("name", [name for name, one in ESTIMATORS.items() if one.needs_group])
def test_equal_rewards_of_a_problem_are_exactly_no_signal(name: str) -> None:
    given = Rewards(
        rewards=torch.full((3,), 0.1, dtype=torch.float64),
        problems=[A] * 3,
        penalties=torch.zeros(3, dtype=torch.float64),
        lengths=torch.ones(3, dtype=torch.int64),
        weights=token_weights([1] * 3, "samples"),
    )
    assert ESTIMATORS[name].advantages(given).abs().max().item() < 1e-15


VALUES = st.lists(st.floats(-10, 10), min_size=2, max_size=30)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uniform(count: int) -> torch.Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def test_group_baseline_by_hand() -> None:
    result = group_baseline(f64(1.0, 0.2, 0.5, 0.6), [A, B, A, B])
    torch.testing.assert_close(result, f64(0.25, -0.2, -0.25, 0.2))


def test_group_baseline_of_nothing_is_nothing() -> None:
    assert group_baseline(f64(), []).tolist() == []


def test_normalise_by_hand() -> None:
    # mean 4, population variance (9 + 1 + 1 + 9) / 4 = 5
    result = normalise(f64(1.0, 3.0, 5.0, 7.0), uniform(4))
    torch.testing.assert_close(result, f64(-3.0, -1.0, 1.0, 3.0) / 5**0.5)


def test_normalise_weighs_what_it_is_told_to() -> None:
    # mean 0.75 * 0 + 0.25 * 4 = 1, variance 0.75 * 1 + 0.25 * 9 = 3
    result = normalise(f64(0.0, 4.0), f64(0.75, 0.25))
    torch.testing.assert_close(result, f64(-1.0, 3.0) / 3**0.5)


def test_equal_values_have_no_advantage() -> None:
    # 0.1 has no exact mean: what is left of it is rounding, and must not become +-1.
    assert normalise(f64(0.1, 0.1, 0.1), uniform(3)).tolist() == [0.0, 0.0, 0.0]


def test_the_residue_of_rounding_is_exactly_zero() -> None:
    result = normalise(f64(-1.0, 1e-17, 1.0), uniform(3))
    assert result[1].item() == 0.0


@drawn(VALUES, st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_positive_scale_of_all_scores_change_nothing(
    values: list[float], shift: float, scale: float
) -> None:
    plain = f64(*values)
    if plain.std(correction=0) < 1e-3:
        return
    weights = uniform(len(values))
    torch.testing.assert_close(
        normalise(plain, weights), normalise(plain * scale + shift, weights), atol=1e-6, rtol=1e-6
    )


@drawn(VALUES)
def test_mean_zero_and_deviation_one_or_all_zero(values: list[float]) -> None:
    result = normalise(f64(*values), uniform(len(values)))
    if not result.any():
        return
    assert abs(result.mean().item()) < 1e-6
    assert abs(result.std(correction=0).item() - 1) < 1e-6
