"""The loss of one micro-batch, and what it looked like."""

from dataclasses import dataclass

from torch import Tensor

from mappa_core.train.batches import Batch
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.mismatch import corrections, kl_of_sampler
from mappa_core.train.objective import (
    Surrogate,
    clipped_surrogate,
    k2,
    k3,
    sequence_ratios,
    token_ratios,
)
from mappa_core.train.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """One micro-batch's share of a minibatch's loss."""

    loss: Tensor
    """() summed with its weights: shares of one minibatch add up to its loss."""
    figures: dict[str, Tensor]
    """What there is to report of each token, by name; (sum of T,) each."""


def loss_of(batch: Batch, tokens: TokenLogprobs, algorithm: AlgorithmConfig) -> StepLoss:
    """The loss of a micro-batch whose tokens the model has read."""
    logprobs = tokens.logprobs.cpu()
    trainer = logprobs.detach() if batch.trainer_logprobs is None else batch.trainer_logprobs
    surrogate = _surrogate(batch, logprobs, trainer, algorithm)
    weights = corrections(trainer, batch.sampler_logprobs, batch.lengths, algorithm.mismatch)
    losses = weights * surrogate.losses
    if batch.reference_logprobs is not None and algorithm.kl_in_loss:
        pull = k2 if algorithm.kl == "k2_loss" else k3
        losses = losses + algorithm.kl_coefficient * pull(logprobs, batch.reference_logprobs)
    return StepLoss(
        loss=(batch.weights * losses).sum(),
        figures=_figures(batch, tokens, surrogate, trainer) | {"correction_mean": weights},
    )


def _surrogate(
    batch: Batch, logprobs: Tensor, trainer: Tensor, algorithm: AlgorithmConfig
) -> Surrogate:
    old = trainer if algorithm.mismatch.importance == "token" else batch.sampler_logprobs
    if algorithm.ratio == "sequence":
        ratios = sequence_ratios(logprobs, old, batch.lengths)
    else:
        ratios = token_ratios(logprobs, old)
    return clipped_surrogate(ratios, batch.advantages, algorithm.clip, algorithm.clip_high)


def _figures(
    batch: Batch, tokens: TokenLogprobs, surrogate: Surrogate, trainer: Tensor
) -> dict[str, Tensor]:
    differences = trainer - batch.sampler_logprobs
    figures = {
        "ratio_mean": surrogate.ratios,
        "clip_fraction": surrogate.clipped,
        "kl_sampler": differences.abs(),
        "mismatch_kl": kl_of_sampler(differences),
        "mismatch_ratio": differences.exp(),
        "mismatch_ratio_squared": (2 * differences).exp(),
    }
    if tokens.entropies is not None:
        figures["entropy"] = tokens.entropies
    if batch.reference_logprobs is not None:
        figures["kl_base"] = k3(tokens.logprobs.detach().cpu(), batch.reference_logprobs)
    return figures
