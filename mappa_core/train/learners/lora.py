"""Computes linear layers and their LoRA adapters as one operation, alone and in a gated MLP.

    y = x W^T + b + s (x A^T) B^T        (LoRA: arXiv 2106.09685, equation 3)

As layers of their own, the adapter's product is made, scaled and added in three passes over
something as large as y, and as many in the backward pass. Here both products are written into one
tensor. On a CPU, where such a pass costs as much as a narrow product, that is memory and time.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import LoraConfig
from peft.tuners import lora
from torch import Tensor
from torch.nn import functional

from mappa_core.train.learners.fused_linear import GatedMlp, gated, gated_mlps, linear, product_onto


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

    @property
    def trained(self) -> tuple[Tensor, ...]:
        """List A and B."""
        return self.down, self.up

    def rounded(self) -> "Adapted":
        """Have the adapter in the type of W, which all products are of."""
        down, up = (each.to(self.weight.dtype) for each in (self.down, self.up))
        return Adapted(weight=self.weight, bias=self.bias, down=down, up=up, scaling=self.scaling)

    def map(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, I) to (N, O); also gives x A^T, (N, R)."""
        narrow = rows @ self.down.T
        mapped = functional.linear(rows, self.weight, self.bias)
        return mapped.addmm_(narrow, self.up.T, alpha=self.scaling), narrow

    def gradients(
        self, of_mapped: Tensor, rows: Tensor, kept: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Give the gradients of A and B, and that of x A^T, which is `kept`."""
        of_narrow = (of_mapped @ self.up).mul_(self.scaling)
        of_up = (of_mapped.T @ cast(Tensor, kept)).mul_(self.scaling)
        return (of_narrow.T @ rows, of_up), of_narrow

    def of_rows(self, of_mapped: Tensor, kept: Tensor | None, onto: Tensor | None = None) -> Tensor:
        """Give the gradient of x, (N, I), of those of y and of x A^T."""
        of_rows = product_onto(of_mapped, self.weight, onto)
        return of_rows.addmm_(cast(Tensor, kept), self.down)


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
        return super().forward(x, *args, **kwargs) if adapted is None else linear(x, adapted)


def fuse(config: LoraConfig) -> None:
    """Have the adapters that are made from `config` compute so."""
    # PEFT documents this way of bringing a layer, under a private name.
    config._register_custom_module({torch.nn.Linear: FusedLinear})  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def fuse_gated(model: torch.nn.Module) -> None:
    """Have the model's gated MLPs of such layers compute as one operation."""
    for one in gated_mlps(model, lambda layer: isinstance(layer, FusedLinear)):
        _fuse_gated(one)


def _fuse_gated(one: GatedMlp) -> None:
    own = one.mlp.forward

    def forward(states: Tensor) -> Tensor:
        layers = [cast(FusedLinear, each).adapted for each in one[1:]]
        if None in layers:
            return own(states)
        return gated(states, *cast(list[Adapted], layers))

    one.mlp.forward = forward
