import math
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.batches import micro_batched
from mappa_core.train.clipped_objective import (
    clipped_surrogate,
    k2,
    k3,
    loss_of,
    sequence_ratios,
    token_ratios,
)
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.prefix_tree import micro_batches
from mappa_core.train.token_logprobs import TokenLogprobs


def surrogate_at(ratio: float, advantage: float) -> tuple[float, float, bool]:
    """Loss, gradient with respect to the log-prob, and whether it is clipped."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    ratios = token_ratios(logprob, torch.zeros(1, dtype=torch.float64))
    result = clipped_surrogate(ratios, torch.tensor([advantage]).double(), 0.2)
    result.losses.sum().backward()
    assert logprob.grad is not None
    return result.losses.item(), logprob.grad.item(), bool(result.clipped.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),  # on policy: the policy gradient, -A
        (1.0, -2.0, 2.0, 2.0, False),
        (1.1, 2.0, -2.2, -2.2, False),
        (1.5, 2.0, -2.4, 0.0, True),  # already more likely by more than 20 %
        (0.5, 2.0, -1.0, -1.0, False),  # less likely although good: free to come back
        (0.5, -2.0, 1.6, 0.0, True),
        (1.5, -2.0, 3.0, 3.0, False),  # more likely although bad: free to come back
        (0.5, 0.0, 0.0, 0.0, False),
    ],
)
def test_clipped_surrogate_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: bool
) -> None:
    assert surrogate_at(ratio, advantage) == (
        pytest.approx(loss),
        pytest.approx(gradient),
        clipped,
    )


def test_a_wider_band_upwards_clips_later() -> None:
    ratios, advantages = torch.tensor([1.25, 0.75]), torch.tensor([1.0, -1.0])
    assert clipped_surrogate(ratios, advantages, 0.2).clipped.tolist() == [True, True]
    assert clipped_surrogate(ratios, advantages, 0.2, 0.28).clipped.tolist() == [False, True]


# Two tokens of ratios 1.25 and 0.72, whose geometric mean is sqrt(0.9); each counts half.
@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({}, -(1.2 + 0.72) / 2),
        ({"clip_high": 0.28}, -(1.25 + 0.72) / 2),
        ({"ratio": "sequence"}, -math.sqrt(0.9)),
    ],
)
def test_the_loss_has_the_configured_ratio_and_band(
    settings: dict[str, object], loss: float
) -> None:
    algorithm = AlgorithmConfig.model_validate(settings)
    sample = TrainingSample(
        action_id=UUID(int=1),
        prompt_token_ids=(1,),
        token_ids=(2, 3),
        old_logprobs=(0.0, 0.0),
        trainer_logprobs=(0.0, 0.0),
        advantages=(1.0, 1.0),
    )
    (batch,) = micro_batched([sample], algorithm, partial(micro_batches, budget_tokens=8))
    read = TokenLogprobs(logprobs=torch.tensor([1.25, 0.72]).log(), entropies=torch.zeros(2))
    assert loss_of(batch, read, algorithm).loss.item() == pytest.approx(loss)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ratio": "sequence"},
        {"loss_over": "samples"},
        {"kl": "k3_loss", "kl_coefficient": 0.5},
        {"mismatch": {"importance": "token", "sequence_mask": 1.3}},
    ],
)
def test_a_given_token_is_in_no_loss(settings: dict[str, object]) -> None:
    algorithm = AlgorithmConfig.model_validate(settings)
    other = TrainingSample(
        action_id=UUID(int=2),
        prompt_token_ids=(7,),
        token_ids=(8,),
        old_logprobs=(-0.4,),
        trainer_logprobs=(-0.3,),
        reference_logprobs=(-0.2,),
        advantages=(-1.0,),
    )
    plain = TrainingSample(
        action_id=UUID(int=1),
        prompt_token_ids=(1,),
        token_ids=(2, 3),
        old_logprobs=(-0.1, -0.2),
        trainer_logprobs=(-0.15, -0.2),
        reference_logprobs=(-0.3, -0.1),
        advantages=(1.0, 2.0),
    )
    # The same with two tokens in its middle that the policy would hardly ever have written.
    forced = replace(
        plain,
        token_ids=(2, 5, 6, 3),
        old_logprobs=(-0.1, 0.0, 0.0, -0.2),
        trainer_logprobs=(-0.15, -9.0, -8.0, -0.2),
        reference_logprobs=(-0.3, -5.0, -7.0, -0.1),
        advantages=(1.0, 0.0, 0.0, 2.0),
        given=(1, 3),
    )

    def result(sample: TrainingSample, *logprobs: float) -> tuple[float, dict[str, float]]:
        cut = partial(micro_batches, budget_tokens=64)
        (batch,) = micro_batched([sample, other], algorithm, cut)
        values = torch.tensor(logprobs)
        step = loss_of(batch, TokenLogprobs(logprobs=values, entropies=-values), algorithm)
        return step.loss.item(), {
            name: figure.double().sum().item() for name, figure in step.figures.items()
        }

    loss, figures = result(forced, -0.12, -9.5, -8.5, -0.25, -0.35)
    expected, plainly = result(plain, -0.12, -0.25, -0.35)
    assert loss == pytest.approx(expected)
    assert figures == pytest.approx(plainly)


def test_sequence_ratio_by_hand() -> None:
    # Token ratios 2 and 8, geometric mean 4; the second action's one token has 0.5.
    logprobs = torch.tensor([math.log(2), math.log(8), math.log(0.5)], requires_grad=True)
    ratios = sequence_ratios(logprobs, torch.zeros(3), torch.tensor([2, 1]))
    assert ratios.tolist() == pytest.approx([4.0, 4.0, 0.5])
    (gradient,) = torch.autograd.grad(ratios.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([4.0, 4.0, 0.5])


@given(st.floats(0.01, 5), st.floats(-3, 3))
def test_a_gradient_never_points_the_wrong_way(ratio: float, advantage: float) -> None:
    _, gradient, _ = surrogate_at(ratio, advantage)
    assert gradient * advantage <= 0


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_k2_and_k3_are_zero_only_at_the_base_and_never_negative(a: float, b: float) -> None:
    new, base = torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)
    for estimate in (k2(new, base).item(), k3(new, base).item()):
        assert estimate >= 0
        assert (estimate > 0) == (abs(a - b) > 0) or abs(a - b) < 1e-7


def test_k2_and_k3_by_hand() -> None:
    new, base = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert k2(new, base).item() == pytest.approx(0.5 * math.log(2) ** 2)
    assert k3(new, base).item() == pytest.approx(0.5 - 1 + math.log(2))


def test_k2_as_a_loss_pulls_towards_the_base() -> None:
    new = torch.tensor([-1.0, -3.0], requires_grad=True)
    k2(new, torch.tensor([-2.0, -2.0])).sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [1.0, -1.0]  # descent lowers the first, raises the second


def test_the_samplers_kl_by_hand() -> None:
    # Trainer over sampler: ratios r of 4, 0.5, 1; r - 1 - ln r
    sampler, trainer = torch.tensor([0.2, 0.4, 0.5]).log(), torch.tensor([0.8, 0.2, 0.5]).log()
    expected = [3 - math.log(4), -0.5 + math.log(2), 0.0]
    assert k3(sampler, trainer).tolist() == pytest.approx(expected, abs=1e-6)
