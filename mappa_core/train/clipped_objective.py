"""Computes what is minimised: PPO's clipped surrogate (arXiv 1707.06347, eq. 7) and a KL pull.

    loss = sum_t w_t [ -c_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t) + beta kl_t ]
    rho_t = pi(a_t) / pi_old(a_t), or its geometric mean over the action (GSPO)
    c_t   = what a sampler that is not quite pi_old is corrected by (`mismatch`)

The weights w_t are fixed over a whole minibatch before it is cut into micro-batches, and their
terms are only ever summed: how it is cut changes memory, never the gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mappa_core.train.batches import Batch
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.mismatch import action_means, corrections
from mappa_core.train.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """One micro-batch's share of a minibatch's loss."""

    loss: Tensor
    """() summed with its weights: shares of one minibatch add up to its loss."""
    figures: dict[str, Tensor]
    """What there is to report of each token, by name; (sum of T,) each."""


def loss_of(batch: Batch, tokens: TokenLogprobs, algorithm: AlgorithmConfig) -> StepLoss:
    """Compute the loss of a micro-batch whose tokens the policy that learns has read."""
    if batch.sampled is not None:
        tokens = tokens.of(batch.sampled)
    logprobs = tokens.logprobs.cpu()
    trainer = logprobs.detach() if batch.trainer_logprobs is None else batch.trainer_logprobs
    old = trainer if algorithm.mismatch.importance == "token" else batch.sampler_logprobs
    if algorithm.ratio == "sequence":
        ratios = sequence_ratios(logprobs, old, batch.lengths)
    else:
        ratios = token_ratios(logprobs, old)
    surrogate = clipped_surrogate(ratios, batch.advantages, algorithm.clip, algorithm.clip_high)
    weights = corrections(trainer, batch.sampler_logprobs, batch.lengths, algorithm.mismatch)
    losses = weights * surrogate.losses
    if batch.reference_logprobs is not None and algorithm.kl_in_loss:
        pull = k2 if algorithm.kl == "k2_loss" else k3
        losses = losses + algorithm.kl_coefficient * pull(logprobs, batch.reference_logprobs)
    return StepLoss(
        loss=(batch.weights * losses).sum(),
        figures=_figures(batch, tokens, surrogate, trainer) | {"correction_mean": weights},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The clipped surrogate of each token, all of shape (T,)."""

    losses: Tensor
    ratios: Tensor
    clipped: Tensor
    """bool: the clip holds the gradient at zero."""


def token_ratios(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Compute rho_t = pi(a_t) / pi_old(a_t) of each token (arXiv 1707.06347, eq. 6); (T,)."""
    return (logprobs - old_logprobs).exp()


def sequence_ratios(logprobs: Tensor, old_logprobs: Tensor, lengths: Tensor) -> Tensor:
    """Compute the action's ratio at each of its tokens, whose own log-prob takes the gradient.

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


def clipped_surrogate(
    ratios: Tensor, advantages: Tensor, clip: float, clip_high: float | None = None
) -> Surrogate:
    """Compute -min(rho A, clip(rho, 1 - eps, 1 + eps') A) of each token (arXiv 1707.06347, eq. 7).

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
    """Compute 0.5 (log pi - log pi_ref)^2 of each token: as a loss its gradient is that of the KL.

    Biased as a value, right as a gradient on on-policy samples (arXiv 2501.03262, on
    REINFORCE++-baseline). Shapes (T,) -> (T,).
    """
    return 0.5 * (logprobs - reference).square()


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Compute exp(x) - 1 - x, x = log pi_ref - log pi: unbiased and never negative (GRPO, eq. 4).

    J. Schulman, "Approximating KL divergence", 2020. Shapes (T,) -> (T,).
    """
    difference = reference - logprobs
    return torch.expm1(difference) - difference


def _figures(
    batch: Batch, tokens: TokenLogprobs, surrogate: Surrogate, trainer: Tensor
) -> dict[str, Tensor]:
    differences = trainer - batch.sampler_logprobs
    figures = {
        "ratio_mean": surrogate.ratios,
        "clip_fraction": surrogate.clipped,
        "kl_sampler": differences.abs(),
        "mismatch_kl": k3(batch.sampler_logprobs, trainer),
        "mismatch_ratio": differences.exp(),
        "mismatch_ratio_squared": (2 * differences).exp(),
    }
    if tokens.entropies is not None:
        figures["entropy"] = tokens.entropies
    if batch.reference_logprobs is not None:
        figures["kl_base"] = k3(tokens.logprobs.detach().cpu(), batch.reference_logprobs)
    return figures
