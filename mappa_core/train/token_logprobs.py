"""Computes log-probabilities of sampled tokens, without ever holding the (M, V) matrix of logits.

    log pi(v | h) = h . w_v - logsumexp_u(h . w_u)          (h is divided by the temperature first)

The second term's gradient with respect to h is one vector per row, the expected row of W, and it
is at hand in the forward pass. Keeping that, (M, D), instead of the logits makes the backward pass
free where W is frozen; where W is trained, it computes the logits again, chunk by chunk:

    d logsumexp / d h = sum_u softmax(h W^T)_u w_u          d logsumexp / d w_u = softmax_u h
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROWS = 128
"""Rows of logits held at once; 25 MB of float32 for a vocabulary of 49,152. What is above 32 MiB,
glibc takes anew from the operating system each time: a page fault for every 4 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """What the model says about E sampled tokens."""

    logprobs: Tensor
    """(E,) float32, differentiable with respect to the hidden states."""
    entropies: Tensor | None
    """(E,) float32, of the whole distribution, in nats; None where no gradient is taken."""

    def of(self, tokens: Tensor) -> "TokenLogprobs":
        """Keep some of them; `tokens` is (E,) bool."""
        entropies = self.entropies
        if entropies is not None:
            entropies = entropies[tokens.to(entropies.device)]
        kept = self.logprobs[tokens.to(self.logprobs.device)]
        return TokenLogprobs(logprobs=kept, entropies=entropies)


class _LogNormaliser(torch.autograd.Function):
    """Computes logsumexp of each row of h W^T, in chunks."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: Tensor,
        weight: Tensor,
        rounded: Tensor,
        differentiable: bool,
    ) -> tuple[Tensor, Tensor]:
        exact = weight.to(hidden.dtype)
        normaliser = hidden.new_empty(len(hidden))
        expected = torch.empty_like(hidden) if differentiable else hidden.new_empty(0)
        for start in range(0, len(hidden), ROWS):
            chunk = slice(start, start + ROWS)
            logits = hidden[chunk] @ exact.T
            normaliser[chunk] = logits.logsumexp(dim=-1)
            if differentiable:
                shares = logits.sub_(normaliser[chunk, None]).exp_()
                expected[chunk] = shares.to(rounded.dtype) @ rounded
        ctx.save_for_backward(expected, hidden, weight, normaliser)
        ctx.products = rounded.dtype
        ctx.mark_non_differentiable(expected)
        return normaliser, expected

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        expected, hidden, weight, normaliser = ctx.saved_tensors
        rows = gradients[0][:, None]
        if not ctx.needs_input_grad[1]:
            return rows * expected, None, None, None
        exact = weight.to(hidden.dtype)
        of_weight = torch.zeros_like(exact)
        for start in range(0, len(hidden), ROWS):
            chunk = slice(start, start + ROWS)
            shares = (hidden[chunk] @ exact.T).sub_(normaliser[chunk, None]).exp_()
            shares.mul_(rows[chunk])
            if ctx.products is hidden.dtype:
                of_weight.addmm_(shares.T, hidden[chunk])
            else:
                of_weight += shares.to(ctx.products).T @ hidden[chunk].to(ctx.products)
        return rows * expected, of_weight, None, None


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    temperature: float = 1.0,
    rounded: Tensor | None = None,
) -> TokenLogprobs:
    """Compute the log-probability of each token in the distribution of its row, in float32.

    Args:
        hidden: (M, D) last hidden states.
        weight: (V, D) output embedding; takes a gradient where it is trained.
        rows: (E,) int64, which hidden state predicts the token.
        token_ids: (E,) int64, the token.
        temperature: Above 0; the distribution is softmax(logits / temperature).
        rounded: The weight in the type of the products that only the gradient is made of; None for
            float32, which logits are of.
    """
    hidden = hidden.float() / temperature
    differentiable = torch.is_grad_enabled() and hidden.requires_grad
    if rounded is None:
        rounded = weight.detach().to(hidden.dtype)
    normaliser, expected = _LogNormaliser.apply(hidden, weight, rounded, differentiable)
    # Picked with `[]` on a CPU, rows that several tokens share get their gradients in the order in
    # which its threads come; `index_select` adds them in one, so an update repeats to the bit.
    logits = (hidden.index_select(0, rows) * weight.index_select(0, token_ids)).sum(dim=-1)
    entropies = None
    if differentiable:
        entropies = (normaliser - (hidden * expected).sum(dim=-1)).detach()[rows]
    logprobs = logits - normaliser.index_select(0, rows)
    return TokenLogprobs(logprobs=logprobs, entropies=entropies)


def capped_logprobs(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, rows: Tensor, token_ids: Tensor
) -> TokenLogprobs:
    """Compute the same where logits are no linear map: capped (Gemma 2), or with a bias.

    Slower, in chunks of edges that are computed again in the backward pass.

    Args:
        logits_of: Maps (R, D) float32 hidden states to (R, V) logits.
        hidden: (M, D) last hidden states.
        rows: (E,) int64, which hidden state predicts the token.
        token_ids: (E,) int64, the token.
    """
    hidden = hidden.float()
    parts = [
        cast(
            tuple[Tensor, Tensor],
            checkpoint(
                _read_rows, logits_of, hidden.index_select(0, row), token, use_reentrant=False
            ),
        )
        for row, token in zip(rows.split(ROWS), token_ids.split(ROWS), strict=True)
    ]
    logprobs, entropies = (torch.cat(each) for each in zip(*parts, strict=True))
    return TokenLogprobs(
        logprobs=logprobs, entropies=entropies.detach() if logprobs.requires_grad else None
    )


def _read_rows(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, token_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of each row's token and entropy of the row; (R,) each."""
    logprobs = logits_of(hidden).float().log_softmax(dim=-1)
    own = logprobs.gather(1, token_ids[:, None])[:, 0]
    return own, -(logprobs.exp() * logprobs).sum(dim=-1)
