import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.train.batches import token_weights

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def test_weights_over_samples_by_hand() -> None:
    weights = token_weights([1, 4], "samples")
    assert weights.tolist() == [0.5, 0.125, 0.125, 0.125, 0.125]


def test_weights_over_tokens_by_hand() -> None:
    assert token_weights([1, 4], "tokens").tolist() == [0.2] * 5


def test_weights_over_a_budget_by_hand() -> None:
    assert token_weights([1, 4], "budget", 10).tolist() == [0.05] * 5


@given(LENGTHS, st.sampled_from(["samples", "tokens"]))
def test_weights_sum_to_one(lengths: list[int], over: str) -> None:
    weights = token_weights(lengths, over)
    assert weights.shape == (sum(lengths),)
    assert weights.sum().item() == pytest.approx(1.0)
