"""Computes a linear layer and its LoRA adapter as one operation, as PEFT's own layer.

    y = x W^T + b + s (x A^T) B^T        (LoRA: arXiv 2106.09685, equation 3)

As layers of their own, the adapter's product is made, scaled and added in three passes over
something as large as y, and as many in the backward pass. Here both products are written into one
tensor. On a CPU, where such a pass costs as much as a narrow product, that is memory and time.
"""

from typing import Any, cast

import torch
from peft import LoraConfig
from peft.tuners import lora
from torch import Tensor
from torch.nn import functional


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scaling: float,
    ) -> Tensor:
        rows = states.reshape(-1, states.shape[-1]).to(weight.dtype)
        down, up = down.to(weight.dtype), up.to(weight.dtype)
        narrow = rows @ down.T
        ctx.save_for_backward(rows, weight, down, up, narrow)
        ctx.scaling, ctx.shape = scaling, states.shape
        mapped = functional.linear(rows, weight, bias).addmm_(narrow, up.T, alpha=scaling)
        return mapped.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, weight, down, up, narrow = ctx.saved_tensors
        of_mapped = gradients[0].reshape(-1, len(weight))
        of_narrow = (of_mapped @ up).mul_(ctx.scaling)
        of_states = None
        if ctx.needs_input_grad[0]:
            of_states = (of_mapped @ weight).addmm_(of_narrow, down).view(ctx.shape)
        of_up = (of_mapped.T @ narrow).mul_(ctx.scaling)
        return of_states, None, None, of_narrow.T @ rows, of_up, None


def lora_linear(
    states: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scaling: float
) -> Tensor:
    """Compute the adapted layer's output, (..., O); differentiable but for `weight` and `bias`.

    All products are of the type of `weight`, and so is the output; each gradient is given to
    autograd in it, which adds it up in the type of what it is of.

    Args:
        states: (..., I).
        weight: (O, I), frozen: it takes no gradient.
        bias: (O,) or None, frozen.
        down: A, (R, I).
        up: B, (O, R).
        scaling: s, alpha / R.
    """
    return cast(Tensor, _LoraLinear.apply(states, weight, bias, down, up, scaling))


class FusedLinear(lora.Linear):
    """One adapter without dropout on a frozen layer."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
        """Compute what PEFT does, to rounding; (..., I) in, (..., O) out."""
        if self.disable_adapters or self.merged:
            return super().forward(x, *args, **kwargs)
        (name,) = self.active_adapters
        base = cast(torch.nn.Linear, self.get_base_layer())
        down, up = (cast(torch.nn.Linear, part[name]) for part in (self.lora_A, self.lora_B))
        return lora_linear(x, base.weight, base.bias, down.weight, up.weight, self.scaling[name])


def fuse(config: LoraConfig) -> None:
    """Have the adapters that are made from `config` compute so."""
    # PEFT documents this way of bringing a layer, under a private name.
    config._register_custom_module({torch.nn.Linear: FusedLinear})  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
