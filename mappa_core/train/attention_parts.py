"""Attends over a prefix tree in parts on a CPU, and joins them by the log-sum-exp of each.

Softmax over all ancestors of a node is put together from those over its parts p, of which a call
gives the result O_p and the log-sum-exp L_p of its scores:

    L = log sum_p exp L_p        O = sum_p exp(L_p - L) O_p

(FlashAttention, arXiv 2205.14135, section 3.1). In the backward pass a part's weights are
exp(S_p - L), and of the rest of its row a key needs only rowsum(dO * O) (algorithm 4). So a call
that is given L and O of the whole computes the part's share of the gradients, and shares add up.
Nothing of N x N is held or made twice.

Calls are those below torch's `scaled_dot_product_attention`, which does not return L. They are in
float32 whatever the layers' type: on Zen 5 their bfloat16 is no faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from mappa_core.train.tree_plans import PartsPlan

_FORWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_BACKWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001

Three: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Of query, key and value: (1, H, N, D), (1, H_kv, N, D), (1, H_kv, N, D)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockCall:
    """Several blocks, of B x Q rows or fewer."""

    rows: Tensor
    """(R,) int64."""
    columns: Tensor
    """(B, K) int64."""
    attends: Tensor
    """(B, 1, Q, K) bool."""

    def queries(self, states: Tensor) -> Tensor:
        """(1, H, N, D) -> (B, H, Q, D), filled up with zeros."""
        size = self.attends.shape[2]
        picked = states[0].index_select(1, self.rows)
        filled = functional.pad(picked, (0, 0, 0, -len(self.rows) % size))
        return filled.unflatten(1, (-1, size)).transpose(0, 1)

    def keys(self, states: Tensor) -> Tensor:
        """(1, H_kv, N, D) -> (B, H_kv, K, D)."""
        picked = states[0].index_select(1, self.columns.flatten())
        return picked.unflatten(1, self.columns.shape).transpose(0, 1)

    def of_rows(self, blocks: Tensor) -> Tensor:
        """(B, H, Q, D) -> (1, H, R, D)."""
        return blocks.transpose(0, 1).flatten(1, 2)[None, :, : len(self.rows)]

    def add_of_keys(self, sums: Tensor, blocks: Tensor) -> None:
        """Add (B, H_kv, K, D) to (1, H_kv, N, D), each at its node, in one order."""
        _, heads, nodes, width = sums.shape
        rows = blocks.transpose(1, 2).reshape(-1, heads * width)
        added = rows.new_zeros(nodes, heads * width).index_add_(0, self.columns.flatten(), rows)
        sums += added.view(nodes, heads, width).transpose(0, 1)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """0 for a key that a query attends to, -inf for others; (B, 1, Q, K)."""
        return torch.zeros_like(self.attends, dtype=dtype).masked_fill_(~self.attends, -torch.inf)


def attend_parts(states: Three, tree: PartsPlan, scaling: float | None, copied: int) -> Tensor:
    """Compute attention of every node to itself and its ancestors.

    Args:
        states: Query, key and value, rotary positions applied; a value may be narrower or wider.
        tree: The parts.
        scaling: Factor on the products; None for 1 / sqrt(D).
        copied: Elements of keys copied for one call, at most.

    Returns:
        (1, H, N, D_v), of the value's type.
    """
    scaling = states[0].shape[-1] ** -0.5 if scaling is None else scaling
    width = states[2].shape[-1]
    wide = max(states[0].shape[-1], width)
    # The calls take one width; zeros change neither products nor results.
    filled = (functional.pad(each, (0, wide - each.shape[-1])) for each in states)
    return cast(Tensor, _Parts.apply(*filled, tree, scaling, copied))[..., :width]


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: PartsPlan,
        scaling: float,
        copied: int,
    ) -> Tensor:
        states = _exact(query, key, value)
        mixed = torch.zeros_like(states[0])
        sums = mixed.new_full(mixed.shape[:-1], -torch.inf)
        for rows, keys, causal in _slices(tree):
            part = _sliced(states, rows, keys)
            _join(mixed, sums, rows, _FORWARD(*part, is_causal=causal, scale=scaling))
        for call in _block_calls(tree, copied // (key.shape[1] * key.shape[-1])):
            bias = call.bias(mixed.dtype)
            parts = call.queries(states[0]), call.keys(states[1]), call.keys(states[2])
            result, part_sums = _FORWARD(*parts, attn_mask=bias, scale=scaling)
            found = call.of_rows(result), call.of_rows(part_sums[..., None])[..., 0]
            _join(mixed, sums, call.rows, found)
        mixed = mixed.to(value.dtype)
        ctx.save_for_backward(query, key, value, mixed, sums)
        ctx.tree, ctx.scaling, ctx.copied = tree, scaling, copied
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        query, key, value, mixed, sums = ctx.saved_tensors
        states = _exact(query, key, value)
        whole = gradients[0].to(sums.dtype), mixed.to(sums.dtype), sums
        of_states = tuple(torch.zeros_like(each) for each in states)
        for rows, keys, causal in _slices(ctx.tree):
            gradient, result, part_sums = (each[:, :, rows] for each in whole)
            part = _sliced(states, rows, keys)
            shares = _BACKWARD(gradient, *part, result, part_sums, 0.0, causal, scale=ctx.scaling)
            for total, share, at in zip(of_states, shares, (rows, keys, keys), strict=True):
                total[:, :, at] += share
        for call in _block_calls(ctx.tree, ctx.copied // (key.shape[1] * key.shape[-1])):
            _add_blocks(of_states, states, whole, call, ctx.scaling)
        given = zip(of_states, (query, key, value), strict=True)
        return *(total.to(each.dtype) for total, each in given), None, None, None


def _add_blocks(
    of_states: tuple[Tensor, ...], states: Three, whole: Three, call: _BlockCall, scaling: float
) -> None:
    """Add the blocks' share of the gradients; `whole` has that of the result, it, and L."""
    gradient, result = call.queries(whole[0]), call.queries(whole[1])
    shares = _BACKWARD(
        gradient,
        *(call.queries(states[0]), call.keys(states[1]), call.keys(states[2])),
        result,
        call.queries(whole[2][..., None])[..., 0],
        0.0,
        False,
        attn_mask=call.bias(result.dtype),
        scale=scaling,
    )
    of_states[0][:, :, call.rows] += call.of_rows(shares[0])
    for total, share in zip(of_states[1:], shares[1:], strict=True):
        call.add_of_keys(total, share)


def _join(mixed: Tensor, sums: Tensor, rows: slice | Tensor, part: tuple[Tensor, Tensor]) -> None:
    """Take a part's result and log-sum-exp into those of `rows`."""
    before, (result, found) = sums[:, :, rows], part
    both = torch.logaddexp(before, found)
    kept = mixed[:, :, rows] * (before - both).exp_()[..., None]
    mixed[:, :, rows] = kept.add_(result * (found - both).exp_()[..., None])
    sums[:, :, rows] = both


def _exact(*states: Tensor) -> Three:
    """Give float32 of a narrower type."""
    query, key, value = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in states)
    return query, key, value


def _sliced(states: Three, rows: slice, keys: slice) -> Three:
    return states[0][:, :, rows], states[1][:, :, keys], states[2][:, :, keys]


def _slices(tree: PartsPlan) -> Iterator[tuple[slice, slice, bool]]:
    """List queries and keys of each call for a chain, and whether these are the same nodes."""
    for chain in tree.chains:
        own = slice(chain.start, chain.end)
        yield own, own, True
        if chain.below > chain.end:
            yield slice(chain.end, chain.below), own, False


def _block_calls(tree: PartsPlan, copied_keys: int) -> Iterator[_BlockCall]:
    if tree.blocks is None:
        return
    count, _, size, keys = tree.blocks.attends.shape
    at_once = max(1, copied_keys // keys)
    for start in range(0, count, at_once):
        part = slice(start, start + at_once)
        yield _BlockCall(
            rows=tree.rows[start * size : (start + at_once) * size],
            columns=tree.blocks.columns[part],
            attends=tree.blocks.attends[part],
        )
