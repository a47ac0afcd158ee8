"""Sampling tokens from a causal language model, one request at a time."""

from collections.abc import Collection, Sequence

import torch
from transformers import PreTrainedModel

from mappa_core.core.records.episodes import FinishReason, Sampling


def next_token(
    logits: torch.Tensor, sampling: Sampling, generator: torch.Generator
) -> tuple[int, float]:
    """Draw one token.

    Args:
        logits: Shape (V,).
        sampling: Temperature 0 takes the likeliest token.
        generator: On the logits' device.

    Returns:
        The token's id, and its log-probability in softmax(logits / temperature) over the whole
        vocabulary, or in softmax(logits) at temperature 0.
    """
    logprobs = (logits.float() / (sampling.temperature or 1.0)).log_softmax(-1)
    if sampling.temperature == 0:
        token = logprobs.argmax()
    else:
        chances = _nucleus(logprobs.softmax(-1), sampling.top_p)
        token = torch.multinomial(chances, 1, generator=generator)[0]
    return int(token), float(logprobs[token])


def _nucleus(chances: torch.Tensor, top_p: float) -> torch.Tensor:
    """The fewest likeliest tokens that together have `top_p`; the others get 0. Shape (V,)."""
    if top_p >= 1:
        return chances
    ordered, order = chances.sort(descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(chances).scatter(0, order, ordered * (mass_before < top_p))


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    prompt_token_ids: Sequence[int],
    sampling: Sampling,
    *,
    seed: int,
    end_token_ids: Collection[int],
) -> tuple[tuple[int, ...], tuple[float, ...], FinishReason]:
    """Sample until an end token, which is kept, or `max_tokens`.

    Returns:
        Token ids and their log-probabilities, both of shape (T,), and why it stopped.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    read = torch.tensor([prompt_token_ids], device=model.device)
    cache = None
    token_ids: list[int] = []
    logprobs: list[float] = []
    while len(token_ids) < sampling.max_tokens:
        output = model(input_ids=read, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token, logprob = next_token(output.logits[0, -1], sampling, generator)
        token_ids.append(token)
        logprobs.append(logprob)
        if token in end_token_ids:
            return tuple(token_ids), tuple(logprobs), FinishReason.STOP
        cache = output.past_key_values
        read = torch.tensor([[token]], device=model.device)
    return tuple(token_ids), tuple(logprobs), FinishReason.LENGTH
