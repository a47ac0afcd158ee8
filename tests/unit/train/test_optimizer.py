import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.optimizer import build, learning_rate, state_of


def rates(total: int, warmup: float) -> list[float]:
    learner = LearnerConfig(learning_rate=1.0, warmup_fraction=warmup, final_fraction=0.1)
    return [learning_rate(learner, step, total) for step in range(total + 1)]


def test_cosine_by_hand() -> None:
    # progress 0, 1/2, 1 and past the end
    assert rates(3, 0.0) == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_warm_up_rises_in_equal_steps_and_starts_above_zero() -> None:
    assert rates(10, 0.3)[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates(10, 0.3)[9] == pytest.approx(0.1)


def test_a_run_of_one_step_uses_the_peak() -> None:
    assert rates(1, 0.0)[0] == 1.0


@given(st.integers(1, 200), st.floats(0, 1))
def test_always_between_nothing_and_the_peak(total: int, warmup: float) -> None:
    assert all(0 < rate <= 1.0 for rate in rates(total, warmup))


def test_weights_decay_apart_from_their_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.zeros(1)
    learner = LearnerConfig(weight_decay=0.1)
    build({"w": weight}, {}, learner, rate=0.5).step()
    # w (1 - rate x decay): arXiv 1711.05101, algorithm 2, where the gradient is nothing.
    assert weight.item() == pytest.approx(0.95)


def test_moments_keep_the_configured_share() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.full((1,), 2.0)
    optimizer = build({"w": weight}, {}, LearnerConfig(betas=(0.7, 0.75)), rate=0.5)
    optimizer.step()
    moments = state_of({"w": weight}, optimizer)
    assert moments["exp_avg.w"].item() == pytest.approx(0.3 * 2)
    assert moments["exp_avg_sq.w"].item() == pytest.approx(0.25 * 4)
