"""A linear layer and its low-rank adapter as one operation.

    y = x W^T + b + s (x A^T) B^T        (LoRA: arXiv 2106.09685, equation 3)

As layers of their own, the adapter's product is made, scaled and added in three passes over
something as large as y, and as many in the backward pass. Here both products are written into one
tensor. On a CPU, where such a pass costs as much as a narrow product, that is memory and time.
"""

from typing import Any, cast

import torch
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
        rows = states.reshape(-1, states.shape[-1])
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
    """The adapted layer's output, (..., O); differentiable but for `weight` and `bias`.

    Args:
        states: (..., I).
        weight: (O, I), frozen: it takes no gradient.
        bias: (O,) or None, frozen.
        down: A, (R, I).
        up: B, (O, R).
        scaling: s, alpha / R.
    """
    return cast(Tensor, _LoraLinear.apply(states, weight, bias, down, up, scaling))
