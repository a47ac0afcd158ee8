import torch
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.train.returns import k1, returns_to_go


def test_k1_by_hand() -> None:
    kl = k1(torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5, -1.0, -0.5]))
    assert kl.tolist() == [0.5, -1.0, 0.0]


def test_returns_to_go_by_hand() -> None:
    assert returns_to_go(torch.tensor([1.0, 2.0, 4.0])).tolist() == [7.0, 6.0, 4.0]


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=20))
def test_each_return_is_its_own_reward_and_the_next_return(rewards: list[int]) -> None:
    returns = returns_to_go(torch.tensor(rewards)).tolist()
    assert returns == [r + g for r, g in zip(rewards, [*returns[1:], 0], strict=True)]
