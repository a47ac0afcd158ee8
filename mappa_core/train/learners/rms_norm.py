"""Computes RMSNorm as one operation.

    y = w * x / sqrt(mean(x^2) + eps)        (arXiv 1910.07467, equation 4)

As the models of transformers write it, eight tensors as large as x are made on the way back. On a
CPU each costs as much as a narrow product.
"""

from typing import Any, cast

import torch
from torch import Tensor


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, eps: float) -> Tensor:  # noqa: ANN401
        scale = states.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(states, weight, scale)
        return (states * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        states, weight, scale = ctx.saved_tensors
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (gradients[0] * states).mul_(scale).flatten(0, -2).sum(0)
        of_states = gradients[0] * weight
        share = torch.linalg.vecdot(of_states, states)[..., None] / states.shape[-1]
        of_states.addcmul_(states, share.mul_(scale).mul_(scale), value=-1).mul_(scale)
        return of_states, of_weight, None


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute (..., D) of (..., D) states and a weight, (D,); all of one type."""
    return cast(Tensor, _RmsNorm.apply(states, weight, eps))


def fuse_norms(model: torch.nn.Module) -> None:
    """Have the model's RMSNorms compute so, of float32 states.

    What is one shows in its class's name and in what it makes of a few random states, small ones
    too, of which `eps` is a large part.
    """
    for norm in model.modules():
        weight = getattr(norm, "weight", None)
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        if type(norm).__name__.endswith("RMSNorm") and weight is not None and eps is not None:
            _fuse(norm, weight, float(eps))


def _fuse(norm: torch.nn.Module, weight: Tensor, eps: float) -> None:
    own = norm.forward

    def forward(states: Tensor) -> Tensor:
        if states.dtype is not torch.float32 or norm.weight.dtype is not torch.float32:
            return own(states)
        return rms_norm(states, cast(Tensor, norm.weight), eps)

    generator = torch.Generator().manual_seed(0)
    states = torch.randn(8, len(weight), generator=generator)
    with torch.no_grad():
        if all(
            torch.allclose(forward(each), own(each), atol=0) for each in (states, states * eps**0.5)
        ):
            norm.forward = forward
