"""What is minimised: the clipped surrogate of PPO (arXiv 1707.06347, eq. 7) and a KL pull.

    loss = sum_t w_t [ -c_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t) + beta kl_t ]
    rho_t = pi(a_t) / pi_old(a_t), or its geometric mean over the action (GSPO)
    c_t   = what a sampler that is not quite pi_old is corrected by (`mismatch`)

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


def token_weights(
    lengths: Sequence[int],
    over: Literal["samples", "tokens", "budget"],
    budget_tokens: int = 1,
) -> Tensor:
    """Each token's share in a mean, over all N actions laid end to end.

    Args:
        lengths: T of each of the N actions, all >= 1.
        over: `samples`: 1 / (N T), every action counts the same; `tokens`: 1 / sum of T, every
            token does; both sum to 1. `budget`: 1 / (N L), so that an action's length neither
            dilutes nor strengthens its tokens (Dr. GRPO, arXiv 2503.20783, section 3).
        budget_tokens: L, for `budget`.

    Returns:
        (sum of T,) float64.
    """
    counts = torch.tensor(lengths, dtype=torch.int64)
    if over == "tokens":
        return torch.full((int(counts.sum()),), 1.0, dtype=torch.float64) / counts.sum()
    shares = counts.double() if over == "samples" else torch.full(counts.shape, budget_tokens)
    return (1.0 / (len(lengths) * shares.double())).repeat_interleave(counts)


def token_ratios(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """rho_t = pi(a_t) / pi_old(a_t) of each token (arXiv 1707.06347, eq. 6); (T,)."""
    return (logprobs - old_logprobs).exp()


def sequence_ratios(logprobs: Tensor, old_logprobs: Tensor, lengths: Tensor) -> Tensor:
    """The action's ratio at each of its tokens, whose own log-prob takes the gradient.

    s = (pi(a) / pi_old(a))^(1 / T), s_t = sg[s] pi(a_t) / sg[pi(a_t)] (GSPO, arXiv 2507.18071,
    eqs. 7 and 14).

    Args:
        logprobs: (sum of T,) under the policy that learns; takes the gradient.
        old_logprobs: (sum of T,).
        lengths: (B,) int64, T of each action.
    """
    differences = (logprobs - old_logprobs).detach()
    means = action_means(differences, lengths).repeat_interleave(lengths)
    return means.exp() * (logprobs - logprobs.detach()).exp()


def action_means(values: Tensor, lengths: Tensor) -> Tensor:
    """The mean over each action's tokens; (sum of T,) -> (B,)."""
    owners = torch.arange(len(lengths)).repeat_interleave(lengths)
    sums = torch.zeros(len(lengths), dtype=values.dtype).index_add(0, owners, values)
    return sums / lengths


def clipped_surrogate(
    ratios: Tensor, advantages: Tensor, clip: float, clip_high: float | None = None
) -> Surrogate:
    """-min(rho A, clip(rho, 1 - eps, 1 + eps') A) of each token (arXiv 1707.06347, eq. 7).

    Args:
        ratios: (T,) of `token_ratios` or `sequence_ratios`.
        advantages: (T,).
        clip: eps in (0, 1).
        clip_high: eps' > 0, where it is not eps (DAPO, arXiv 2503.14476, eq. 10).
    """
    free = ratios * advantages
    held = ratios.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high)) * advantages
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
    """exp(x) - 1 - x with x = log pi_ref - log pi: unbiased and never negative (GRPO, eq. 4).

    J. Schulman, "Approximating KL divergence", 2020. Shapes (T,) -> (T,).
    """
    difference = reference - logprobs
    return torch.expm1(difference) - difference
