import torch
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.learning.returns import k1, returns_to_go, token_rewards

FLOATS = st.floats(-5, 5)


def test_penalty_is_on_every_token_and_the_reward_on_the_last() -> None:
    kl = k1(torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5, -1.0, -0.5]))
    assert kl.tolist() == [0.5, -1.0, 0.0]
    rewards = token_rewards(torch.tensor(0.8), kl, 0.1)
    torch.testing.assert_close(rewards, torch.tensor([-0.05, 0.1, 0.8]))


def test_returns_to_go_by_hand() -> None:
    assert returns_to_go(torch.tensor([1.0, 2.0, 4.0])).tolist() == [7.0, 6.0, 4.0]


def test_a_more_likely_token_than_under_the_base_lowers_every_return_up_to_it() -> None:
    kl = torch.tensor([0.0, 1.0, 0.0])
    pulled = returns_to_go(token_rewards(torch.tensor(0.5), kl, 0.1))
    torch.testing.assert_close(pulled, torch.tensor([0.4, 0.4, 0.5]))


@given(st.lists(FLOATS, min_size=1, max_size=20), FLOATS)
def test_without_kl_every_token_is_worth_the_reward(kl: list[float], reward: float) -> None:
    rewards = token_rewards(torch.tensor(reward), torch.tensor(kl), 0.0)
    assert torch.equal(returns_to_go(rewards), torch.full((len(kl),), torch.tensor(reward)))
