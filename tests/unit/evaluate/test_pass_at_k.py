"""pass@k by enumeration of all draws, and the majority's answer."""

from itertools import combinations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.evaluate.pass_at_k import majority, pass_at_k

ONE, OTHER = UUID(int=1), UUID(int=2)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_it_is_the_share_of_draws_with_a_right_sample(samples, data):
    k = data.draw(st.integers(1, len(samples)))
    draws = list(combinations(samples, k))
    share = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k({ONE: samples}, k) == pytest.approx(share)


def test_problems_count_alike():
    outcomes = {ONE: [True] * 4, OTHER: [True, False, False, False]}
    assert pass_at_k(outcomes, 1) == pytest.approx((1 + 1 / 4) / 2)
    assert pass_at_k(outcomes, 2) == pytest.approx((1 + 1 / 2) / 2)
    assert pass_at_k(outcomes, 4) == 1.0


@pytest.mark.parametrize(("outcomes", "k"), [({}, 1), ({ONE: [True]}, 2), ({ONE: [True]}, 0)])
def test_too_few_samples_give_no_number(outcomes, k):
    with pytest.raises(ValueError, match="needs at least"):
        pass_at_k(outcomes, k)


def test_the_majority_and_its_absence():
    assert majority(["7", "8", "8", None, None, None]) == "8"
    assert majority(["7", "8"]) == "7"
    assert majority([None, None]) is None
    assert majority([]) is None
