"""Attends over a prefix tree in parts on a CPU, and joins them by the log-sum-exp of each.

Softmax over all ancestors of a node is put together from those over its parts p, of which a call
gives the result O_p and the log-sum-exp L_p of its scores:

    L = log sum_p exp L_p        O = sum_p exp(L_p - L) O_p

(FlashAttention, arXiv 2205.14135, section 3.1). In the backward pass a part's weights are
exp(S_p - L), and of the rest of its row a key needs only rowsum(dO * O) (algorithm 4). So a call
that is given L and O of the whole computes the part's share of the gradients, and shares add up.
Nothing of N x N is held or made twice. A part may be another pass's (`SharedRoot`).

Calls are those below torch's `scaled_dot_product_attention`, which does not return L. They are in
float32 whatever the layers' type: on Zen 5 their bfloat16 is no faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from mappa_core.train.shared_root import RootOfLayer
from mappa_core.train.tree_plans import PartsPlan

_FORWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_BACKWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001

Three: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Of query, key and value: (N, H, D), (N, H_kv, D), (N, H_kv, D). So a node's rows lie together."""


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
        """(N, H, D) -> (B, H, Q, D), filled up with zeros."""
        size = self.attends.shape[2]
        filled = states.new_zeros(len(self.columns) * size, *states.shape[1:])
        torch.index_select(states, 0, self.rows, out=filled[: len(self.rows)])
        return filled.unflatten(0, (-1, size)).transpose(1, 2)

    def keys(self, states: Tensor) -> Tensor:
        """(N, H_kv, D) -> (B, H_kv, K, D)."""
        picked = states.index_select(0, self.columns.flatten())
        return picked.unflatten(0, self.columns.shape).transpose(1, 2)

    def of_rows(self, blocks: Tensor) -> Tensor:
        """(B, H, Q, D) -> (R, H, D)."""
        return blocks.transpose(1, 2).flatten(0, 1)[: len(self.rows)]

    def add_of_rows(self, sums: Tensor, blocks: Tensor) -> None:
        """Add (B, H, Q, D) to (N, H, D), each at its node."""
        sums.index_add_(0, self.rows, self.of_rows(blocks))

    def add_of_keys(self, sums: Tensor, blocks: Tensor) -> None:
        """Add (B, H_kv, K, D) to (N, H_kv, D), each at its node, in one order."""
        sums.index_add_(0, self.columns.flatten(), blocks.transpose(1, 2).flatten(0, 1))

    def bias(self, dtype: torch.dtype) -> Tensor:
        """0 for a key that a query attends to, -inf for others; (B, 1, Q, K)."""
        return torch.zeros_like(self.attends, dtype=dtype).masked_fill_(~self.attends, -torch.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """How a call of `attend_parts` attends; its arguments."""

    tree: PartsPlan
    scaling: float
    copied: int
    root: RootOfLayer | None


def attend_parts(
    states: Three,
    tree: PartsPlan,
    scaling: float | None,
    copied: int,
    root: RootOfLayer | None = None,
) -> Tensor:
    """Compute attention of every node to itself and its ancestors.

    Args:
        states: Query, key and value, (1, H, N, D), (1, H_kv, N, D) and (1, H_kv, N, D_v), rotary
            positions applied; a value may be narrower or wider.
        tree: The parts.
        scaling: Factor on the products; None for 1 / sqrt(D).
        copied: Elements of keys copied for one call, at most.
        root: What is shared with another pass; None for nothing.

    Returns:
        (1, H, N, D_v), of the value's type.
    """
    factor: float = states[0].shape[-1] ** -0.5 if scaling is None else scaling
    width = states[2].shape[-1]
    wide = max(states[0].shape[-1], width)
    # The calls take one width; zeros change neither products nor results.
    filled = (functional.pad(each, (0, wide - each.shape[-1])) for each in states)
    by_node = (each[0].transpose(0, 1) for each in filled)
    how = _How(tree=tree, scaling=factor, copied=copied, root=root)
    mixed = cast(Tensor, _Parts.apply(*by_node, how))
    return mixed.transpose(0, 1)[None, ..., :width]


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: _How,
    ) -> Tensor:
        states, scaling = _exact(query, key, value), how.scaling
        above = None if how.root is None else how.root.keys(*states[1:])
        if above is None:
            mixed = states[0].new_zeros(states[0].shape)
            sums = mixed.new_full(mixed.shape[:-1], -torch.inf)
        else:
            found = _FORWARD(*map(_by_head, (states[0], *above)), scale=scaling)
            mixed, sums = _by_node(found[0]).contiguous(), found[1][0].T.contiguous()
        for part in _slices(how.tree, read=above is not None):
            by_head = map(_by_head, part.of(states))
            found = _FORWARD(*by_head, is_causal=part.causal, scale=scaling)
            result, found_sums = _by_node(found[0]), found[1][0].T
            if part.first:
                mixed[part.rows], sums[part.rows] = result, found_sums
            else:
                mixed[part.rows], sums[part.rows] = _joined(
                    mixed[part.rows], sums[part.rows], result, found_sums
                )
        for call in _block_calls(how.tree, how.copied // (key.shape[1] * key.shape[-1])):
            parts = call.queries(states[0]), call.keys(states[1]), call.keys(states[2])
            result, found_sums = _FORWARD(*parts, attn_mask=call.bias(mixed.dtype), scale=scaling)
            both, both_sums = _joined(
                mixed.index_select(0, call.rows),
                sums.index_select(0, call.rows),
                call.of_rows(result),
                call.of_rows(found_sums[..., None])[..., 0],
            )
            mixed.index_copy_(0, call.rows, both)
            sums.index_copy_(0, call.rows, both_sums)
        mixed = mixed.to(value.dtype)
        ctx.save_for_backward(query, key, value, mixed, sums, *(above or ()))
        ctx.how = how
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        query, key, value, mixed, sums, *above = ctx.saved_tensors
        states, how = _exact(query, key, value), cast(_How, ctx.how)
        whole = gradients[0].to(sums.dtype), mixed.to(sums.dtype), sums
        of_states = (
            states[0].new_zeros(query.shape),
            *(states[0].new_zeros(each.shape) for each in (key, value)),
        )
        if how.root is not None and above:
            keys, values = above
            shares = _shares(whole, (states[0], keys, values), scaling=how.scaling)
            of_query, of_key, of_value = map(_by_node, shares)
            of_states[0].add_(of_query)
            how.root.give_gradients(of_key, of_value)
        for part in _slices(how.tree):
            of_rows = whole[0][part.rows], whole[1][part.rows], whole[2][part.rows]
            shares = _shares(of_rows, part.of(states), scaling=how.scaling, causal=part.causal)
            places = (part.rows, part.keys, part.keys)
            for total, share, at in zip(of_states, shares, places, strict=True):
                total[at] += _by_node(share)
        for call in _block_calls(how.tree, how.copied // (key.shape[1] * key.shape[-1])):
            _add_blocks(of_states, states, whole, call, how.scaling)
        if how.root is not None and not above:
            how.root.add_gradients(of_states[1], of_states[2])
        given = zip(of_states, (query, key, value), strict=True)
        return *(total.to(each.dtype) for total, each in given), None


def _shares(whole: Three, states: Three, *, scaling: float, causal: bool = False) -> Three:
    """Give a part's shares of the gradients, (1, H, R, D); `whole` as in `_add_blocks`."""
    gradient, result, sums = whole
    return _BACKWARD(
        _by_head(gradient),
        *map(_by_head, states),
        _by_head(result),
        sums.T[None],
        0.0,
        causal,
        scale=scaling,
    )


def _add_blocks(
    of_states: Sequence[Tensor], states: Three, whole: Three, call: _BlockCall, scaling: float
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
    call.add_of_rows(of_states[0], shares[0])
    for total, share in zip(of_states[1:], shares[1:], strict=True):
        call.add_of_keys(total, share)


def _joined(
    before: Tensor, before_sums: Tensor, result: Tensor, found: Tensor
) -> tuple[Tensor, Tensor]:
    """Join two parts' results, (R, H, D), by their log-sum-exps, (R, H)."""
    both = torch.logaddexp(before_sums, found)
    kept = before * (before_sums - both).exp_()[..., None]
    return kept.addcmul_(result, (found - both).exp_()[..., None]), both


def _exact(*states: Tensor) -> Three:
    """Give float32 of a narrower type."""
    query, key, value = (
        each.to(torch.promote_types(each.dtype, torch.float32)).contiguous() for each in states
    )
    return query, key, value


def _by_head(states: Tensor) -> Tensor:
    """(R, H, D) -> (1, H, R, D)."""
    return states.transpose(0, 1)[None]


def _by_node(states: Tensor) -> Tensor:
    """(1, H, R, D) -> (R, H, D)."""
    return states[0].transpose(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slices:
    """Queries and keys of one call for a chain."""

    rows: slice
    keys: slice
    causal: bool
    """Whether they are the same nodes."""
    first: bool
    """Whether nothing was read for these rows before."""

    def of(self, states: Three) -> Three:
        """Give the call's query, key and value."""
        query, key, value = states
        return query[self.rows], key[self.keys], value[self.keys]


def _slices(tree: PartsPlan, *, read: bool = False) -> Iterator[_Slices]:
    """List the calls for long chains, those of a chain before those of what is below it.

    `read` tells whether all rows have read something before.
    """
    reached = 0
    for chain in tree.chains:
        own, first = slice(chain.start, chain.end), chain.start >= reached and not read
        yield _Slices(rows=own, keys=own, causal=True, first=first)
        if chain.below > chain.end:
            below = slice(chain.end, chain.below)
            yield _Slices(rows=below, keys=own, causal=False, first=first)
        reached = max(reached, chain.below)


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
