"""Computes log-probabilities of sampled tokens, without ever holding the (M, V) matrix of logits.

    log pi(v | h) = h . w_v - logsumexp_u(h . w_u)          (h is divided by the temperature first)

The second term's gradient with respect to h is one vector per row, the expected row of W, and it
is at hand in the forward pass. Keeping that, (M, D), instead of the logits makes the backward pass
free where W is frozen; where W is trained, it computes the logits again. Both go block by block:

    d logsumexp / d h = sum_u softmax(h W^T)_u w_u          d logsumexp / d w_u = softmax_u h
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK_ROWS, BLOCK_COLUMNS = 1024, 2048
"""Of logits that are held at once, at most; 8 MiB of float32, which stays in a CPU's cache."""
ROWS = 128
"""Of logits that are no linear map, which are held whole; 25 MB of float32 for a vocabulary of
49,152. What is above 32 MiB, glibc takes anew from the operating system each time: a page fault for
every 4 KiB."""


class WeightGradient(Protocol):
    """Takes the gradient of an output embedding in the place of autograd."""

    def rows(self, token_ids: Tensor) -> Tensor:
        """Give rows of the weight, (E, D) of (E,) int64, with a gradient."""
        ...

    def add(self, blocks: Iterable[tuple[slice, Tensor]]) -> None:
        """Take what one pass adds to each block of rows."""
        ...


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
    """Computes logsumexp of each row of h W^T, block by block."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: Tensor,
        weight: Tensor,
        products: torch.dtype,
        differentiable: bool,
        gradient: WeightGradient | None,
    ) -> tuple[Tensor, Tensor]:
        parts = [_normalised(rows, weight, products, differentiable) for rows in _rows(hidden)]
        normaliser, expected = (torch.cat(each) for each in zip(*parts, strict=True))
        ctx.save_for_backward(expected, hidden, weight, normaliser)
        ctx.products, ctx.gradient = products, gradient
        ctx.mark_non_differentiable(expected)
        return normaliser, expected

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        expected, hidden, weight, normaliser = ctx.saved_tensors
        factors = gradients[0][:, None]
        of_weight = None
        if ctx.needs_input_grad[1]:
            blocks = _of_weight(hidden, weight, normaliser, factors, ctx.products)
            if ctx.gradient is None:
                of_weight = torch.empty_like(weight, dtype=hidden.dtype)
                for block, values in blocks:
                    of_weight[block] = values
            else:
                ctx.gradient.add(blocks)
        return factors * expected, of_weight, None, None, None


def _rows(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.split(BLOCK_ROWS)


def _blocks(weight: Tensor) -> Iterator[slice]:
    for start in range(0, len(weight), BLOCK_COLUMNS):
        yield slice(start, start + BLOCK_COLUMNS)


def _normalised(
    hidden: Tensor, weight: Tensor, products: torch.dtype, differentiable: bool
) -> tuple[Tensor, Tensor]:
    """Compute logsumexp of each row and, where it is differentiable, the expected row of W.

    Both are sums over what is below the largest logit so far, and are rescaled when a larger one
    comes (online softmax: arXiv 1805.02867, algorithm 3).
    """
    largest = hidden.new_full((len(hidden), 1), -torch.inf)
    total = hidden.new_zeros(len(hidden), 1)
    expected = hidden.new_zeros(hidden.shape if differentiable else (0,))
    for block in _blocks(weight):
        logits = hidden @ weight[block].to(hidden.dtype).T
        new = torch.maximum(largest, logits.amax(1, keepdim=True))
        scale = largest.sub_(new).exp_()
        shares = logits.sub_(new).exp_()
        total.mul_(scale).add_(shares.sum(1, keepdim=True))
        if differentiable:
            expected.mul_(scale).add_(shares.to(products) @ weight[block].to(products))
        largest = new
    normaliser = (largest + total.log())[:, 0]
    return normaliser, expected.div_(total) if differentiable else expected


def _of_weight(
    hidden: Tensor, weight: Tensor, normaliser: Tensor, factors: Tensor, products: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    """Compute the gradient of the weight, block of its rows by block; factors are (M, 1)."""
    split = list(zip(*map(_rows, (hidden, normaliser[:, None], factors)), strict=True))
    for block in _blocks(weight):
        exact = weight[block].to(hidden.dtype)
        values = torch.zeros_like(exact)
        for states, normalisers, of_rows in split:
            shares = (states @ exact.T).sub_(normalisers).exp_().mul_(of_rows)
            values += shares.to(products).T @ states.to(products)
        yield block, values


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    temperature: float = 1.0,
    products: torch.dtype = torch.float32,
    gradient: WeightGradient | None = None,
) -> TokenLogprobs:
    """Compute the log-probability of each token in the distribution of its row, in float32.

    Args:
        hidden: (M, D) last hidden states.
        weight: (V, D) output embedding; takes a gradient where it is trained.
        rows: (E,) int64, which hidden state predicts the token.
        token_ids: (E,) int64, the token.
        temperature: Above 0; the distribution is softmax(logits / temperature).
        products: Type of those that only the gradient is made of; logits are float32.
        gradient: Takes that of a trained weight; None for autograd.
    """
    hidden = hidden.float() / temperature
    differentiable = torch.is_grad_enabled() and hidden.requires_grad
    normaliser, expected = _LogNormaliser.apply(hidden, weight, products, differentiable, gradient)
    # Picked with `[]` on a CPU, rows that several tokens share get their gradients in the order in
    # which its threads come; `index_select` adds them in one, so an update repeats to the bit.
    picked = weight.index_select(0, token_ids) if gradient is None else gradient.rows(token_ids)
    logits = (hidden.index_select(0, rows) * picked).sum(dim=-1)
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
