"""Computes linear layers whose float32 weights are trained with products in bfloat16.

    y = r(x) r(W)^T + r(b)        r rounds to bfloat16

Under autocast every pass rounds all weights anew, and keeps its copy of them for the way back. Here
all passes of an optimizer step share one.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from mappa_core.train.learners.shared_rows import rows_of


class _RoundedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        states: Tensor,
        rows: Tensor,
        rounded: Tensor,
        _weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(rows, rounded)
        ctx.shape = states.shape
        mapped = functional.linear(rows, rounded, None if bias is None else bias.to(rows.dtype))
        return mapped.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, rounded = ctx.saved_tensors
        of_mapped = gradients[0].reshape(-1, len(rounded))
        of_states = None
        if ctx.needs_input_grad[0]:
            of_states = (of_mapped @ rounded).view(ctx.shape)
        of_bias = of_mapped.sum(0) if ctx.needs_input_grad[4] else None
        return of_states, None, None, of_mapped.T @ rows, of_bias


@contextmanager
def weights_rounded(layers: Iterable[torch.nn.Linear]) -> Generator[None]:
    """Inside, the layers compute so, of their weights as they are now."""
    layers = tuple(layers)
    for layer in layers:
        layer.forward = _forward(layer)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: torch.nn.Linear) -> Callable[[Tensor], Tensor]:
    rounded = layer.weight.detach().bfloat16()

    def forward(states: Tensor) -> Tensor:
        rows = rows_of(states, rounded.dtype)
        mapped = _RoundedLinear.apply(states, rows, rounded, layer.weight, layer.bias)
        return cast(Tensor, mapped)

    return forward
