"""What is minimised: the clipped surrogate of PPO (arXiv 1707.06347, eq. 7) and a KL pull.

    loss = sum_t w_t [ -min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t) + beta kl_t ]
    rho_t = pi(a_t) / pi_old(a_t)

The weights w_t are fixed over a whole minibatch before it is cut into micro-batches, and their
terms are only ever summed: how it is cut changes memory, never the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The clipped surrogate of each token, all of shape (T,)."""

    losses: Tensor
    ratios: Tensor
    clipped: Tensor
    """bool: the clip holds the gradient at zero."""


def token_weights(lengths: Sequence[int], over: Literal["samples", "tokens"]) -> Tensor:
    """Each token's share in a mean, over all N actions laid end to end; sums to 1.

    Args:
        lengths: T of each of the N actions, all >= 1.
        over: `samples`: 1 / (N T), every action counts the same; `tokens`: 1 / sum of T, every
            token does.

    Returns:
        (sum of T,) float64.
    """
    counts = torch.tensor(lengths, dtype=torch.int64)
    if over == "tokens":
        return torch.full((int(counts.sum()),), 1.0, dtype=torch.float64) / counts.sum()
    return (1.0 / (len(lengths) * counts.double())).repeat_interleave(counts)


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float
) -> Surrogate:
    """-min(rho A, clip(rho, 1 - eps, 1 + eps) A) of each token (arXiv 1707.06347, eq. 7).

    Args:
        logprobs: (T,) under the policy that learns; takes the gradient.
        old_logprobs: (T,) under the policy that sampled.
        advantages: (T,).
        clip: eps in (0, 1).
    """
    ratios = (logprobs - old_logprobs).exp()
    free = ratios * advantages
    held = ratios.clamp(1 - clip, 1 + clip) * advantages
    return Surrogate(
        losses=-torch.minimum(free, held), ratios=ratios.detach(), clipped=(held < free).detach()
    )


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """0.5 (log pi - log pi_ref)^2 of each token: as a loss its gradient is that of the KL.

    Biased as a value, right as a gradient on on-policy samples (arXiv 2501.03262, on
    REINFORCE++-baseline). Shapes (T,) -> (T,).
    """
    return 0.5 * (logprobs - reference).square()


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """exp(x) - 1 - x with x = log pi_ref - log pi: unbiased and never negative, for reporting.

    J. Schulman, "Approximating KL divergence", 2020. Shapes (T,) -> (T,).
    """
    difference = reference - logprobs
    return torch.expm1(difference) - difference
