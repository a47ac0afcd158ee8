"""Computes linear layers with products of one type, alone and in a gated MLP, as one operation.

    y = L(x)
    z = D(silu(G x) * U x)               (SwiGLU: arXiv 2002.05202, equation 6)

What a layer is made of, and which of it is trained, is the layer's own. An MLP keeps G x and U x
for the way back, half of what it would keep otherwise.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor
from torch.nn import functional

from mappa_core.train.learners.shared_rows import rows_of


class Layer(Protocol):
    """A linear layer from I to O, as it is while a pass computes."""

    @property
    def weight(self) -> Tensor:
        """Give what is (O, I), in the type of all products."""
        ...

    @property
    def trained(self) -> tuple[Tensor, ...]:
        """List what takes a gradient."""
        ...

    def rounded(self) -> Self:
        """Have all of it in the type of the products."""
        ...

    def map(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map (N, I) to (N, O); beside it, what the way back needs."""
        ...

    def gradients(
        self, of_mapped: Tensor, rows: Tensor, kept: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Give the gradients of what is trained; beside them, what `of_rows` needs."""
        ...

    def of_rows(self, of_mapped: Tensor, kept: Tensor | None, onto: Tensor | None = None) -> Tensor:
        """Give the gradient of the rows, (N, I); added in place to `onto`, if there is one."""
        ...


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        states: Tensor,
        rows: Tensor,
        layer: Layer,
        *_trained: Tensor,
    ) -> Tensor:
        ctx.layer = layer = layer.rounded()
        mapped, kept = layer.map(rows)
        ctx.save_for_backward(rows, kept)
        ctx.shape = states.shape
        return mapped.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, kept = ctx.saved_tensors
        of_mapped = gradients[0].reshape(-1, len(ctx.layer.weight))
        of_trained, kept = ctx.layer.gradients(of_mapped, rows, kept)
        of_states = None
        if ctx.needs_input_grad[0]:
            of_states = ctx.layer.of_rows(of_mapped, kept).view(ctx.shape)
        return of_states, None, None, *of_trained


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        states: Tensor,
        rows: Tensor,
        layers: tuple[Layer, Layer, Layer],
        *_trained: Tensor,
    ) -> Tensor:
        ctx.layers = gate, up, down = tuple(layer.rounded() for layer in layers)
        gates, gate_kept = gate.map(rows)
        ups, up_kept = up.map(rows)
        mapped, down_kept = down.map(functional.silu(gates).mul_(ups))
        ctx.save_for_backward(rows, gates, ups, gate_kept, up_kept, down_kept)
        ctx.shape = states.shape
        return mapped.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, gates, ups, gate_kept, up_kept, down_kept = ctx.saved_tensors
        gate, up, down = ctx.layers
        of_mapped = gradients[0].reshape(-1, len(down.weight))
        opened = functional.silu(gates)
        of_down, down_kept = down.gradients(of_mapped, opened * ups, down_kept)
        of_product = down.of_rows(of_mapped, down_kept)
        of_ups = opened.mul_(of_product)
        of_gates = torch.ops.aten.silu_backward(of_product.mul_(ups), gates)
        of_gate, gate_kept = gate.gradients(of_gates, rows, gate_kept)
        of_up, up_kept = up.gradients(of_ups, rows, up_kept)
        of_states = None
        if ctx.needs_input_grad[0]:
            of_states = gate.of_rows(of_gates, gate_kept)
            of_states = up.of_rows(of_ups, up_kept, onto=of_states).view(ctx.shape)
        return of_states, None, None, *of_gate, *of_up, *of_down


def linear(states: Tensor, layer: Layer) -> Tensor:
    """Compute the layer's output, (..., O), of (..., I).

    It is of the type of the products; each gradient is given to autograd in it, which adds it up in
    the type of what it is of.
    """
    rows = rows_of(states, layer.weight.dtype)
    return cast(Tensor, _Linear.apply(states, rows, layer, *layer.trained))


def gated(states: Tensor, gate: Layer, up: Layer, down: Layer) -> Tensor:
    """Compute a gated MLP with SiLU of (..., I), three layers of one type of products; (..., O)."""
    rows = rows_of(states, gate.weight.dtype)
    layers = gate, up, down
    trained = [each for layer in layers for each in layer.trained]
    return cast(Tensor, _Gated.apply(states, rows, layers, *trained))


def product_onto(left: Tensor, right: Tensor, onto: Tensor | None) -> Tensor:
    """Multiply two matrices; added in place to a third one, if there is one."""
    return left @ right if onto is None else onto.addmm_(left, right)


class GatedMlp(NamedTuple):
    """A module that is a gated MLP with SiLU, and its layers."""

    mlp: torch.nn.Module
    gate: torch.nn.Module
    up: torch.nn.Module
    down: torch.nn.Module


def gated_mlps(
    model: torch.nn.Module, of: Callable[[torch.nn.Module], bool]
) -> tuple[GatedMlp, ...]:
    """List the model's gated MLPs whose three layers are `of` a kind.

    What is one shows in its layers' names and in what it makes of a few random states.
    """
    found: list[GatedMlp] = []
    for mlp in model.modules():
        layers = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        suited = all(isinstance(layer, torch.nn.Module) and of(layer) for layer in layers)
        if suited and len(inspect.signature(mlp.forward).parameters) == 1:
            one = GatedMlp(mlp, *cast(list[torch.nn.Module], layers))
            found += [one] if _is_gated(one) else []
    return tuple(found)


def _is_gated(one: GatedMlp) -> bool:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(8, cast(int, one.gate.in_features), generator=generator)
    states = states.to(next(one.gate.parameters()).dtype)
    with torch.no_grad():
        expected = one.down(functional.silu(one.gate(states)) * one.up(states))
        return torch.allclose(one.mlp(states), expected)
