"""Computes linear layers and their LoRA adapters as one operation, alone and in a gated MLP.

    y = x W^T + b + s (x A^T) B^T        (LoRA: arXiv 2106.09685, equation 3)
    z = D(silu(G x) * U x)               (SwiGLU: arXiv 2002.05202, equation 6), each such a layer

As layers of their own, the adapter's product is made, scaled and added in three passes over
something as large as y, and as many in the backward pass. Here both products are written into one
tensor. On a CPU, where such a pass costs as much as a narrow product, that is memory and time. An
MLP keeps G x and U x for the way back, half of what it would keep otherwise.
"""

import inspect
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import LoraConfig
from peft.tuners import lora
from torch import Tensor
from torch.nn import functional

from mappa_core.train.learners.shared_rows import rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A frozen linear layer and its adapter."""

    weight: Tensor
    """W, (O, I)."""
    bias: Tensor | None
    """(O,)."""
    down: Tensor
    """A, (R, I)."""
    up: Tensor
    """B, (O, R)."""
    scaling: float
    """s, alpha / R."""

    def rounded(self) -> "Adapted":
        """Have the adapter in the type of W, which all products are of."""
        down, up = (each.to(self.weight.dtype) for each in (self.down, self.up))
        return Adapted(weight=self.weight, bias=self.bias, down=down, up=up, scaling=self.scaling)

    def map(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, I) to (N, O); also gives x A^T, (N, R)."""
        narrow = rows @ self.down.T
        mapped = functional.linear(rows, self.weight, self.bias)
        return mapped.addmm_(narrow, self.up.T, alpha=self.scaling), narrow

    def of_adapter(
        self, of_mapped: Tensor, rows: Tensor, narrow: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the gradients of A and B, and that of x A^T."""
        of_narrow = (of_mapped @ self.up).mul_(self.scaling)
        of_up = (of_mapped.T @ narrow).mul_(self.scaling)
        return of_narrow.T @ rows, of_up, of_narrow

    def of_rows(self, of_mapped: Tensor, of_narrow: Tensor) -> Tensor:
        """Give the gradient of x, (N, I)."""
        return (of_mapped @ self.weight).addmm_(of_narrow, self.down)


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        states: Tensor,
        rows: Tensor,
        layer: Adapted,
        *_adapter: Tensor,
    ) -> Tensor:
        ctx.layer = layer = layer.rounded()
        mapped, narrow = layer.map(rows)
        ctx.save_for_backward(rows, narrow)
        ctx.shape = states.shape
        return mapped.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, narrow = ctx.saved_tensors
        of_mapped = gradients[0].reshape(-1, len(ctx.layer.weight))
        *of_adapter, of_narrow = ctx.layer.of_adapter(of_mapped, rows, narrow)
        of_states = None
        if ctx.needs_input_grad[0]:
            of_states = ctx.layer.of_rows(of_mapped, of_narrow).view(ctx.shape)
        return of_states, None, None, *of_adapter


class _LoraGated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        states: Tensor,
        rows: Tensor,
        layers: tuple[Adapted, Adapted, Adapted],
        *_adapters: Tensor,
    ) -> Tensor:
        ctx.layers = gate, up, down = tuple(layer.rounded() for layer in layers)
        gates, gate_narrow = gate.map(rows)
        ups, up_narrow = up.map(rows)
        mapped, down_narrow = down.map(functional.silu(gates).mul_(ups))
        ctx.save_for_backward(rows, gates, ups, gate_narrow, up_narrow, down_narrow)
        ctx.shape = states.shape
        return mapped.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, gates, ups, gate_narrow, up_narrow, down_narrow = ctx.saved_tensors
        gate, up, down = ctx.layers
        of_mapped = gradients[0].reshape(-1, len(down.weight))
        opened = functional.silu(gates)
        *of_down, of_narrow = down.of_adapter(of_mapped, opened * ups, down_narrow)
        of_product = down.of_rows(of_mapped, of_narrow)
        of_ups = opened.mul_(of_product)
        of_gates = torch.ops.aten.silu_backward(of_product.mul_(ups), gates)
        *of_gate, of_gate_narrow = gate.of_adapter(of_gates, rows, gate_narrow)
        *of_up, of_up_narrow = up.of_adapter(of_ups, rows, up_narrow)
        of_states = None
        if ctx.needs_input_grad[0]:
            of_states = gate.of_rows(of_gates, of_gate_narrow)
            of_states.addmm_(of_ups, up.weight).addmm_(of_up_narrow, up.down)
            of_states = of_states.view(ctx.shape)
        return of_states, None, None, *of_gate, *of_up, *of_down


def lora_linear(states: Tensor, layer: Adapted) -> Tensor:
    """Compute the adapted layer's output, (..., O), of (..., I); A and B take gradients.

    All products are of the type of W, and so is the output; each gradient is given to
    autograd in it, which adds it up in the type of what it is of.
    """
    rows = rows_of(states, layer.weight.dtype)
    return cast(Tensor, _LoraLinear.apply(states, rows, layer, layer.down, layer.up))


def lora_gated(states: Tensor, gate: Adapted, up: Adapted, down: Adapted) -> Tensor:
    """Compute a gated MLP with SiLU of (..., I), three adapted layers of one type; (..., O)."""
    rows = rows_of(states, gate.weight.dtype)
    layers = gate, up, down
    adapters = [each for layer in layers for each in (layer.down, layer.up)]
    return cast(Tensor, _LoraGated.apply(states, rows, layers, *adapters))


class FusedLinear(lora.Linear):
    """One adapter without dropout on a frozen layer."""

    @property
    def adapted(self) -> Adapted | None:
        """The layer and its adapter; None where the adapter is not used."""
        if self.disable_adapters or self.merged:
            return None
        (name,) = self.active_adapters
        base = cast(torch.nn.Linear, self.get_base_layer())
        down, up = (cast(torch.nn.Linear, part[name]) for part in (self.lora_A, self.lora_B))
        return Adapted(
            weight=base.weight,
            bias=base.bias,
            down=down.weight,
            up=up.weight,
            scaling=self.scaling[name],
        )

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
        """Compute what PEFT does, to rounding; (..., I) in, (..., O) out."""
        adapted = self.adapted
        return super().forward(x, *args, **kwargs) if adapted is None else lora_linear(x, adapted)


def fuse(config: LoraConfig) -> None:
    """Have the adapters that are made from `config` compute so."""
    # PEFT documents this way of bringing a layer, under a private name.
    config._register_custom_module({torch.nn.Linear: FusedLinear})  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def fuse_gated(model: torch.nn.Module) -> None:
    """Have the model's gated MLPs of such layers compute as one operation.

    What is one shows in its layers' names and in what it makes of a few random states.
    """
    for mlp in model.modules():
        layers = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        adapted = all(isinstance(layer, FusedLinear) for layer in layers)
        if adapted and len(inspect.signature(mlp.forward).parameters) == 1:
            _fuse_gated(mlp, *cast(list[FusedLinear], layers))


def _fuse_gated(
    mlp: torch.nn.Module, gate: FusedLinear, up: FusedLinear, down: FusedLinear
) -> None:
    own = mlp.forward

    def forward(states: Tensor) -> Tensor:
        layers = gate.adapted, up.adapted, down.adapted
        if None in layers:
            return own(states)
        return lora_gated(states, *cast(tuple[Adapted, Adapted, Adapted], layers))

    generator = torch.Generator().manual_seed(0)
    states = torch.randn(8, cast(int, gate.in_features), generator=generator)
    with torch.no_grad():
        if torch.allclose(forward(states), own(states)):
            mlp.forward = forward
