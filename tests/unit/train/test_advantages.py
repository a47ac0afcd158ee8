import torch
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.ids import problem_id
from mappa_core.train.advantages import group_baseline, normalise

A, B = problem_id("a"), problem_id("b")
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


@given(VALUES, st.floats(-5, 5), st.floats(0.1, 10))
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


@given(VALUES)
def test_mean_zero_and_deviation_one_or_all_zero(values: list[float]) -> None:
    result = normalise(f64(*values), uniform(len(values)))
    if not result.any():
        return
    assert abs(result.mean().item()) < 1e-6
    assert abs(result.std(correction=0).item() - 1) < 1e-6
