import pytest
import torch
from torch import Tensor

from mappa_core.train.learners.lora import lora_linear

SCALING = 0.5


def test_worked_by_hand() -> None:
    states = torch.tensor([[1.0, 2.0]])
    weight, bias = torch.tensor([[3.0, 4.0], [0.0, -1.0]]), torch.tensor([10.0, 20.0])
    down, up = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0], [-4.0]])
    # x W^T + b is (11 + 10, -2 + 20), x A^T is 3, and half of 3 B^T is (3, -6).
    mapped = lora_linear(states, weight, bias, down, up, SCALING)
    torch.testing.assert_close(mapped, torch.tensor([[24.0, 12.0]]))


@pytest.fixture
def parts() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"states": (2, 5, 7), "down": (3, 7), "up": (4, 3)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("biased", [True, False])
def test_gradients_are_those_of_finite_differences(parts: dict[str, Tensor], biased: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    bias = weight[:, 0] if biased else None

    def mapped(states: Tensor, down: Tensor, up: Tensor) -> Tensor:
        return lora_linear(states, weight, bias, down, up, SCALING)

    assert torch.autograd.gradcheck(mapped, tuple(parts.values()))


def test_the_first_layer_of_a_model_has_no_gradient_to_hand_down(parts: dict[str, Tensor]) -> None:
    states, weight = parts["states"].detach(), torch.zeros(4, 7, dtype=torch.float64)
    lora_linear(states, weight, None, parts["down"], parts["up"], SCALING).sum().backward()
    assert parts["down"].grad is not None
    assert parts["up"].grad is not None


def test_a_bfloat16_base_gives_float32_gradients_near_the_exact_ones(
    parts: dict[str, Tensor],
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 7, generator=generator).bfloat16()
    upstream = torch.randn(2, 5, 4, generator=generator).bfloat16()
    rounded = {name: part.detach().float().requires_grad_() for name, part in parts.items()}
    mapped = lora_linear(bias=None, scaling=SCALING, weight=weight, **rounded)
    assert mapped.dtype is torch.bfloat16
    exact = lora_linear(bias=None, scaling=SCALING, weight=weight.double(), **parts)
    torch.testing.assert_close(mapped.double(), exact, atol=0.1, rtol=0.02)
    mapped.backward(upstream)
    exact.backward(upstream.double())
    for name, part in rounded.items():
        assert part.grad is not None
        assert part.grad.dtype is torch.float32
        torch.testing.assert_close(part.grad.double(), parts[name].grad, atol=0.1, rtol=0.02)
