"""One optimizer step: the loss of a minibatch, tree by tree, and what it looked like."""

from collections.abc import Sequence

from peft import PeftModel
from torch import Tensor

from mappa_core.adapters.torch_learner.metrics import Tally
from mappa_core.adapters.torch_learner.model import read
from mappa_core.config import AlgorithmConfig
from mappa_core.domain.records import TrainingSample
from mappa_core.learning.batches import Batch, micro_batched
from mappa_core.learning.objective import Surrogate, clipped_surrogate, k2, k3
from mappa_core.learning.token_logprobs import TokenLogprobs


def backward(
    model: PeftModel,
    samples: Sequence[TrainingSample],
    algorithm: AlgorithmConfig,
    micro_batch_tokens: int,
) -> Tally:
    """Add the minibatch's gradient to the parameters' `.grad`."""
    tally = Tally()
    for batch in micro_batched(samples, algorithm, micro_batch_tokens):
        read_tokens = read(model, batch.tree)
        surrogate = clipped_surrogate(
            read_tokens.logprobs.cpu(), batch.old_logprobs, batch.advantages, algorithm.clip
        )
        losses = surrogate.losses
        if algorithm.kl == "k2_loss" and batch.reference_logprobs is not None:
            pull = k2(read_tokens.logprobs.cpu(), batch.reference_logprobs)
            losses = losses + algorithm.kl_coefficient * pull
        loss = (batch.weights * losses).sum()
        loss.backward()
        tally.add(batch, loss, _figures(batch, read_tokens, surrogate))
    return tally


def _figures(batch: Batch, tokens: TokenLogprobs, surrogate: Surrogate) -> dict[str, Tensor]:
    logprobs = tokens.logprobs.detach().cpu()
    figures = {
        "ratio_mean": surrogate.ratios,
        "clip_fraction": surrogate.clipped,
        "kl_sampler": (logprobs - batch.old_logprobs).abs(),
    }
    if tokens.entropies is not None:
        figures["entropy"] = tokens.entropies
    if batch.reference_logprobs is not None:
        figures["kl_base"] = k3(logprobs, batch.reference_logprobs)
    return figures
