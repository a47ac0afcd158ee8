"""Sums the gradient of a trained embedding on a CPU, without another tensor as large.

    logits     products with all of its rows: their gradient is added block of rows by block
    look-ups   of single rows: their gradient is kept, and added when all passes have ended

autograd makes a tensor as large as the embedding for each use in each pass, and adds them up. Sums
come in the order of the passes, so an update repeats to the bit.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mappa_core.train.learners.passes import Passes


class EmbeddingGradient:
    """Takes the gradient of one embedding, as `token_logprobs` wants it."""

    def __init__(self, weight: Tensor, passes: Passes) -> None:
        """Prepare it; `weight` is (V, D)."""
        self._weight, self._passes = weight, passes
        self._looked_up: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        # autograd asks for the gradient of what depends on something that has one.
        self._anchor = torch.zeros((), requires_grad=True)

    def begin(self) -> None:
        """Forget what passes that failed have left."""
        self._looked_up.clear()

    def rows(self, token_ids: Tensor) -> Tensor:
        """Look up rows, (..., D) of (...) int64."""
        return cast(Tensor, _Rows.apply(self._anchor, self._weight, token_ids, self))

    def keep(self, token_ids: Tensor, gradient: Tensor) -> None:
        """Take the gradient of rows that were looked up in this thread's pass."""
        self._looked_up[self._passes.number].append((token_ids, gradient))

    def add(self, blocks: Iterable[tuple[slice, Tensor]]) -> None:
        """Add what this thread's pass makes of each block of rows, after the passes before."""
        with self._passes.in_order(self):
            summed = self._summed()
            for block, values in blocks:
                summed[block] += values

    def finish(self) -> None:
        """Add what was looked up; all passes have ended."""
        for number in sorted(self._looked_up):
            for token_ids, gradient in self._looked_up.pop(number):
                rows = gradient.reshape(-1, gradient.shape[-1])
                self._summed().index_add_(0, token_ids.flatten(), rows)

    def _summed(self) -> Tensor:
        if self._weight.grad is None:
            self._weight.grad = torch.zeros_like(self._weight)
        return self._weight.grad


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        _anchor: Tensor,
        weight: Tensor,
        token_ids: Tensor,
        taker: EmbeddingGradient,
    ) -> Tensor:
        ctx.token_ids, ctx.taker = token_ids, taker
        return torch.nn.functional.embedding(token_ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:  # noqa: ANN401
        ctx.taker.keep(ctx.token_ids, gradients[0])
        return None, None, None, None


def sum_gradients(model: PreTrainedModel, passes: Passes) -> EmbeddingGradient | None:
    """Have the model's embedding take its gradient so, where its output layer is tied to it.

    None where it is not, or where the embedding does more than look up.
    """
    embedding = model.get_input_embeddings()
    tied = embedding.weight is getattr(model.get_output_embeddings(), "weight", None)
    if type(embedding) is not torch.nn.Embedding or not tied or not embedding.weight.requires_grad:
        return None
    if embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse:
        return None
    gradient, padding = EmbeddingGradient(embedding.weight, passes), embedding.padding_idx

    def forward(input: Tensor) -> Tensor:
        rows = gradient.rows(input)
        if padding is None:
            return rows
        # As torch has it: the row of the padding is looked up, and not trained by that.
        return torch.where((input == padding)[..., None], rows.detach(), rows)

    embedding.forward = forward
    return gradient
