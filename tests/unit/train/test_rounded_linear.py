import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from mappa_core.train.learners.families import tiny_config
from mappa_core.train.learners.fused_linear import gated_mlps
from mappa_core.train.learners.rounded_linear import weights_rounded


def test_the_result_and_its_gradients_are_those_under_autocast() -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(7, 4), torch.nn.Linear(7, 4, bias=False)])
    states, upstream = torch.randn(2, 5, 7, requires_grad=True), torch.randn(2, 5, 4).bfloat16()
    given = [states, *layers.parameters()]

    def mapped() -> tuple[Tensor, tuple[Tensor, ...]]:
        # Autocast keeps one copy of what has no history.
        handed_on = states + 0
        total = sum(layer(handed_on) for layer in layers)
        assert isinstance(total, Tensor)
        assert total.dtype is torch.bfloat16
        return total, torch.autograd.grad(total, given, upstream)

    with torch.autocast("cpu", torch.bfloat16):
        expected = mapped()
        with weights_rounded(layers):
            torch.testing.assert_close(mapped(), expected)
    assert all("forward" not in vars(layer) for layer in layers)


def test_a_gated_mlp_is_one_operation_near_its_own() -> None:
    config = tiny_config("qwen3")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    layers = [each for each in model.modules() if type(each) is torch.nn.Linear]
    mlps = gated_mlps(model, lambda layer: layer in layers)
    assert len(mlps) == config.num_hidden_layers
    mlp = mlps[0].mlp
    states = torch.randn(2, 3, config.hidden_size, requires_grad=True)
    given = [states, *mlp.parameters()]

    def mapped() -> tuple[Tensor, tuple[Tensor, ...]]:
        made = mlp(states)
        return made, torch.autograd.grad(made.float().sin().sum(), given)

    exact, of_exact = mapped()
    with weights_rounded(layers, mlps):
        made, of_made = mapped()
    assert "Gated" in type(made.grad_fn).__name__
    for found, expected in zip((made, *of_made), (exact, *of_exact), strict=True):
        assert torch.cosine_similarity(found.float().flatten(), expected.flatten(), 0) > 0.999
    assert all("forward" not in vars(module) for module in model.modules())


def test_gradients_are_float32_and_weights_those_at_the_start() -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 3.0]]))
    with weights_rounded([layer]):
        layer(torch.tensor([[1.0, 10.0]])).sum().backward()
        with torch.no_grad():
            layer.weight.zero_()
        assert layer(torch.ones(1, 2)).item() == 5
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[1.0, 10.0]]))
    assert layer(torch.ones(1, 2)).item() == 0
