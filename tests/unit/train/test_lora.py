from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from mappa_core.train.learners.families import tiny_config
from mappa_core.train.learners.fused_linear import gated, linear
from mappa_core.train.learners.lora import Adapted, fuse, fuse_gated

SCALING = 0.5


def adapted(weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Adapted:
    return Adapted(weight=weight, bias=bias, down=down, up=up, scaling=SCALING)


def test_worked_by_hand() -> None:
    states = torch.tensor([[1.0, 2.0]])
    weight, bias = torch.tensor([[3.0, 4.0], [0.0, -1.0]]), torch.tensor([10.0, 20.0])
    down, up = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0], [-4.0]])
    # x W^T + b is (11 + 10, -2 + 20), x A^T is 3, and half of 3 B^T is (3, -6).
    mapped = linear(states, adapted(weight, bias, down, up))
    torch.testing.assert_close(mapped, torch.tensor([[24.0, 12.0]]))


@pytest.fixture
def parts() -> dict[str, Tensor]:
    return drawn({"states": (2, 5, 7), "down": (3, 7), "up": (4, 3)})


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
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
        return linear(states, adapted(weight, bias, down, up))

    assert torch.autograd.gradcheck(mapped, tuple(parts.values()))


def test_the_first_layer_of_a_model_has_no_gradient_to_hand_down(parts: dict[str, Tensor]) -> None:
    states, weight = parts["states"].detach(), torch.zeros(4, 7, dtype=torch.float64)
    linear(states, adapted(weight, None, parts["down"], parts["up"])).sum().backward()
    assert parts["down"].grad is not None
    assert parts["up"].grad is not None


def test_layers_that_read_other_states_after_each_other_each_read_their_own(
    parts: dict[str, Tensor],
) -> None:
    weight = torch.zeros(4, 7, dtype=torch.float64)
    layer = adapted(weight, None, parts["down"], parts["up"])
    for states in (parts["states"], parts["states"] + 1, parts["states"].float()):
        expected = SCALING * states.double() @ layer.down.T @ layer.up.T
        for _ in range(2):
            torch.testing.assert_close(linear(states, layer), expected)


def test_a_bfloat16_base_gives_float32_gradients_near_the_exact_ones(
    parts: dict[str, Tensor],
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 7, generator=generator).bfloat16()
    upstream = torch.randn(2, 5, 4, generator=generator).bfloat16()
    rounded = {name: part.detach().float().requires_grad_() for name, part in parts.items()}
    states = rounded["states"]
    mapped = linear(states, adapted(weight, None, rounded["down"], rounded["up"]))
    assert mapped.dtype is torch.bfloat16
    layer = adapted(weight.double(), None, parts["down"], parts["up"])
    exact = linear(parts["states"], layer)
    torch.testing.assert_close(mapped.double(), exact, atol=0.1, rtol=0.02)
    mapped.backward(upstream)
    exact.backward(upstream.double())
    for name, part in rounded.items():
        assert part.grad is not None
        assert part.grad.dtype is torch.float32
        torch.testing.assert_close(part.grad.double(), parts[name].grad, atol=0.1, rtol=0.02)


def test_a_gated_mlps_gradients_are_those_of_finite_differences() -> None:
    sizes = {"gate": (6, 7), "up": (6, 7), "down": (5, 6)}
    fixed = drawn({name: (*size, 2) for name, size in sizes.items()})
    given = drawn(
        {"states": (2, 3, 7)}
        | {f"{name} A": (3, size[1]) for name, size in sizes.items()}
        | {f"{name} B": (size[0], 3) for name, size in sizes.items()}
    )

    def mapped(states: Tensor, *adapters: Tensor) -> Tensor:
        layers = [
            adapted(weight.detach()[..., 0], weight.detach()[:, 0, 1], down, up)
            for weight, down, up in zip(fixed.values(), adapters[:3], adapters[3:], strict=True)
        ]
        return gated(states, *layers)

    assert torch.autograd.gradcheck(mapped, tuple(given.values()))


@pytest.mark.parametrize(("activation", "fused"), [("silu", True), ("gelu", False)])
def test_a_models_gated_mlps_are_one_operation_where_they_are_of_this_form(
    activation: str, fused: bool
) -> None:
    settings = tiny_config("qwen3")
    settings.hidden_act = activation
    config = LoraConfig(
        r=2, target_modules=["gate_proj", "up_proj", "down_proj"], init_lora_weights=False
    )
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(settings).double()
    fuse(config)
    model = get_peft_model(plain, config)
    tokens = torch.arange(10)[None]

    def read() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        logits = model(input_ids=tokens).logits
        logits.sin().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return logits.detach(), gradients

    before = read()
    fuse_gated(model)
    torch.testing.assert_close(read(), before)
    mlp = model.get_base_model().get_decoder().layers[0].mlp
    states = torch.randn(3, settings.hidden_size, dtype=torch.float64, requires_grad=True)
    assert ("Gated" in type(mlp(states).grad_fn).__name__) == fused
    with model.disable_adapter():
        torch.testing.assert_close(mlp(states), own_mlp(mlp, states, mlp.act_fn))


def own_mlp(mlp: torch.nn.Module, states: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up, down = (
        getattr(mlp, name).get_base_layer() for name in ("gate_proj", "up_proj", "down_proj")
    )
    return down(act(gate(states)) * up(states))
