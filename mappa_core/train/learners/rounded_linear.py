"""Computes linear layers whose float32 weights are trained with products in bfloat16.

    y = r(x) r(W)^T + r(b)        r rounds to bfloat16

Under autocast every pass rounds all weights anew, and keeps its copy of them for the way back. Here
all passes of an optimizer step share one.
"""

from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mappa_core.train.learners.fused_linear import GatedMlp, gated, linear, product_onto


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A trained linear layer, and its weight in the type of the products."""

    weight: Tensor
    """r(W), (O, I)."""
    trained: tuple[Tensor, ...]
    """W, and b where there is one."""

    def rounded(self) -> "Rounded":
        """Give it as it is."""
        return self

    def map(self, rows: Tensor) -> tuple[Tensor, None]:
        """Map (N, I) to (N, O)."""
        bias = [each.to(rows.dtype) for each in self.trained[1:]]
        return functional.linear(rows, self.weight, *bias), None

    def gradients(
        self, of_mapped: Tensor, rows: Tensor, kept: Tensor | None
    ) -> tuple[tuple[Tensor, ...], None]:
        """Give the gradients of W and b."""
        del kept
        of_bias = [of_mapped.sum(0) for _ in self.trained[1:]]
        return (of_mapped.T @ rows, *of_bias), None

    def of_rows(self, of_mapped: Tensor, kept: Tensor | None, onto: Tensor | None = None) -> Tensor:
        """Give the gradient of x, (N, I)."""
        del kept
        return product_onto(of_mapped, self.weight, onto)


@contextmanager
def weights_rounded(
    layers: Iterable[torch.nn.Linear], mlps: Collection[GatedMlp] = ()
) -> Generator[None]:
    """Inside, the layers compute so, of their weights as they are now; MLPs of them as one."""
    rounded: dict[torch.nn.Module, Rounded] = {layer: _rounded(layer) for layer in layers}
    computed: dict[torch.nn.Module, Callable[[Tensor], Tensor]] = {
        layer: _alone(each) for layer, each in rounded.items()
    }
    computed |= {one.mlp: _together([rounded[layer] for layer in one[1:]]) for one in mlps}
    for module, forward in computed.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in computed:
            del module.forward


def _rounded(layer: torch.nn.Linear) -> Rounded:
    trained = tuple(layer.parameters(recurse=False))
    return Rounded(weight=layer.weight.detach().bfloat16(), trained=trained)


def _alone(layer: Rounded) -> Callable[[Tensor], Tensor]:
    return lambda states: linear(states, layer)


def _together(layers: Iterable[Rounded]) -> Callable[[Tensor], Tensor]:
    gate, up, down = layers
    return lambda states: gated(states, gate, up, down)
