"""Attends over a prefix tree: sequence by sequence, or block by block where they share tokens.

A token attends to its ancestors only, and those are few: the dense N x N product would mostly
compute what the mask throws away. Sequences that share nothing lie one after the other, and each is
plain causal attention on its own span. Where they share, depth-first order keeps relatives
together, so a block of neighbouring queries needs just the union of their ancestors as keys. All
blocks, padded to the longest union, are one batched call, or several where their copies of the keys
would take too much memory. The result is that of dense masked attention.
"""

from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mappa_core.train.prefix_tree import ancestor_mask

BLOCK = 64
"""Queries per block: small enough to leave cousins out, large enough to keep the cores busy."""

COPIED = 2**26
"""Elements of keys copied for one call; 256 MiB in float32. Long sequences take several calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """No two sequences share a token."""

    spans: tuple[tuple[int, int], ...]
    """First node of each sequence, and the first after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """Which keys each block of queries reads."""

    columns: Tensor
    """(blocks, K) int64: the nodes that are the block's keys, padded with node 0."""
    attends: Tensor
    """(blocks, 1, Q, K) bool: which keys a query attends to."""


AttentionPlan: TypeAlias = ChainPlan | BlockPlan
"""Made once per tree, used by every layer."""


def plan(ends: Tensor, block: int = BLOCK) -> AttentionPlan:
    """Plan by spans of the tree's sequences, or where these share tokens or are short, by blocks.

    `ends` is (N,), subtree ends in depth-first order; a block has Q queries.
    """
    spans = _chains(ends.tolist())
    # A call for each of many short sequences would cost more than blocks of several.
    if spans and len(spans) * block <= ends.numel():
        return ChainPlan(spans=spans)
    return _blocks(ends, block)


def _chains(ends: list[int]) -> tuple[tuple[int, int], ...]:
    """List the spans, or () where a node has two children."""
    spans: list[tuple[int, int]] = []
    while not spans or spans[-1][1] < len(ends):
        start = spans[-1][1] if spans else 0
        end = ends[start]
        if any(other != end for other in ends[start:end]):
            return ()
        spans.append((start, end))
    return tuple(spans)


def _blocks(ends: Tensor, block: int) -> BlockPlan:
    """Cut the rows of the ancestor mask into blocks and keep the columns each one needs."""
    mask = ancestor_mask(ends)
    # The last block is filled up with copies of the last row, so that no row is all -inf.
    rows = torch.arange(-(-len(mask) // block) * block, device=ends.device)
    mask = mask[rows.clamp_max(len(mask) - 1)].view(-1, block, len(mask))
    needed = mask.any(dim=1)
    # A stable sort puts needed columns first, in depth-first order; what follows is padding.
    columns = needed.logical_not().sort(dim=1, stable=True).indices[:, : int(needed.sum(1).max())]
    attends = mask.gather(2, columns[:, None, :].expand(-1, block, -1))
    return BlockPlan(columns=columns, attends=attends[:, None])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: AttentionPlan,
    scaling: float | None,
    copied: int = COPIED,
) -> Tensor:
    """Compute scaled dot-product attention of every node to itself and its ancestors.

    Args:
        query: (1, H, N, D) with rotary positions applied.
        key: (1, H_kv, N, D); each of its heads serves H / H_kv query heads.
        value: (1, H_kv, N, D).
        tree: The spans or the blocks.
        scaling: Factor on the products; None for 1 / sqrt(D).
        copied: Elements of keys copied for one call, at most.

    Returns:
        (1, H, N, D).
    """
    if isinstance(tree, ChainPlan):
        return _attend_chains(query, key, value, tree, scaling)
    return _attend_blocks(query, key, value, tree, scaling, copied)


def _attend_chains(
    query: Tensor, key: Tensor, value: Tensor, tree: ChainPlan, scaling: float | None
) -> Tensor:
    spans = [slice(start, end) for start, end in tree.spans]
    mixed = [
        functional.scaled_dot_product_attention(
            query[:, :, span],
            key[:, :, span],
            value[:, :, span],
            is_causal=True,
            scale=scaling,
            enable_gqa=True,
        )
        for span in spans
    ]
    return torch.cat(mixed, dim=2)


def _attend_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: BlockPlan,
    scaling: float | None,
    copied: int,
) -> Tensor:
    _, heads, nodes, width = query.shape
    blocks, _, block, keys = tree.attends.shape
    filled = functional.pad(query[0], (0, 0, 0, blocks * block - nodes))
    queries = filled.view(heads, blocks, block, width).transpose(0, 1)
    at_once = max(1, copied // (heads * keys * width))
    parts = [
        # The copies of a call are made again in the backward pass instead of kept by every layer.
        checkpoint(
            _attend,
            queries[part],
            key[0],
            value[0],
            tree.columns[part],
            tree.attends[part],
            scaling,
            use_reentrant=False,
        )
        for part in (slice(start, start + at_once) for start in range(0, blocks, at_once))
    ]
    mixed = torch.cat(cast(list[Tensor], parts))
    # (blocks, H, Q, D) -> (1, H, N, D)
    return mixed.transpose(0, 1).reshape(1, heads, blocks * block, width)[:, :, :nodes]


def _attend(
    queries: Tensor,
    key: Tensor,
    value: Tensor,
    columns: Tensor,
    attends: Tensor,
    scaling: float | None,
) -> Tensor:
    """(blocks, H, Q, D) of queries to the same of results."""
    heads = queries.shape[1]
    return functional.scaled_dot_product_attention(
        queries,
        _gather(key, columns, heads),
        _gather(value, columns, heads),
        attn_mask=attends,
        scale=scaling,
    )


def _gather(states: Tensor, columns: Tensor, heads: int) -> Tensor:
    """(H_kv, N, D) -> (blocks, H, K, D)."""
    groups, _, width = states.shape
    picked = states.transpose(0, 1).index_select(0, columns.flatten())
    picked = picked.view(*columns.shape, groups, width).transpose(1, 2)
    return picked.repeat_interleave(heads // groups, dim=1)
