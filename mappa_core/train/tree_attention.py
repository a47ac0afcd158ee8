"""Attends over a prefix tree: sequence by sequence, or block by block where they share tokens.

A token attends to its ancestors only, and those are few: the dense N x N product would mostly
compute what the mask throws away. Sequences that share nothing lie one after the other, and each is
plain causal attention on its own span. Where they share, depth-first order keeps relatives
together, so a block of neighbouring queries needs just the union of their ancestors as keys. All
blocks, padded to the longest union, are one batched call, or several where their copies of the keys
would take too much memory. The result is that of dense masked attention.

A layer may see less than all ancestors: the last few (a sliding window), or those of its chunk. Its
mask is a function of two positions, and a node's position is its depth.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
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
"""Made once per tree and mask, used by every layer that has it."""

Sees: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Tells whether a query at the first position sees a key at the second; both int64, broadcast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How a layer makes weights of the products of queries and keys."""

    scaling: float | None = None
    """Factor on the products; None for 1 / sqrt(D)."""
    softcap: float | None = None
    """c, where a product x becomes c tanh(x / c) (Gemma 2, arXiv 2408.00118, section 2)."""
    sinks: Tensor | None = None
    """(H,): a logit of each head that takes weight and has no value (gpt-oss)."""

    @property
    def plain(self) -> bool:
        """Tell whether they are those of scaled dot-product attention."""
        return self.softcap is None and self.sinks is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlans:
    """One tree's plans, each made when a layer first asks for it."""

    ends: Tensor
    """(N,) int64: subtree ends in depth-first order."""
    depths: Tensor
    """(N,) int64."""
    made: dict[tuple[Sees | None, bool], AttentionPlan] = field(
        default_factory=dict[tuple[Sees | None, bool], AttentionPlan]
    )

    def of(self, sees: Sees | None, scores: Scores) -> AttentionPlan:
        """Find the plan of a layer that sees all ancestors (None) or those that `sees` tells."""
        key = (sees, scores.plain)
        if key not in self.made:
            self.made[key] = self._make(sees, scores)
        return self.made[key]

    def _make(self, sees: Sees | None, scores: Scores) -> AttentionPlan:
        seen = ancestor_mask(self.ends) if sees or not scores.plain else None
        if seen is not None and sees is not None:
            whole = seen
            seen = whole & sees(self.depths[:, None], self.depths[None, :])
            # Sequences within the window are plain causal attention.
            if scores.plain and seen.equal(whole):
                return self.of(None, scores)
        return plan(self.ends) if seen is None else _blocks(seen, BLOCK)


def plan(ends: Tensor, block: int = BLOCK) -> AttentionPlan:
    """Plan by spans of the tree's sequences, or where these share tokens or are short, by blocks.

    `ends` is (N,), subtree ends in depth-first order; a block has Q queries.
    """
    spans = _chains(ends.tolist())
    # A call for each of many short sequences would cost more than blocks of several.
    if spans and len(spans) * block <= ends.numel():
        return ChainPlan(spans=spans)
    return _blocks(ancestor_mask(ends), block)


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


def _blocks(mask: Tensor, block: int) -> BlockPlan:
    """Cut the rows of the (N, N) mask into blocks and keep the columns each one needs."""
    # The last block is filled up with copies of the last row, so that no row is all -inf.
    rows = torch.arange(-(-len(mask) // block) * block, device=mask.device)
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
    scores: Scores,
    copied: int = COPIED,
) -> Tensor:
    """Compute attention of every node to itself and the ancestors that it sees.

    Args:
        query: (1, H, N, D) with rotary positions applied.
        key: (1, H_kv, N, D); each of its heads serves H / H_kv query heads.
        value: (1, H_kv, N, D_v).
        tree: The spans, where `scores` are plain, or the blocks.
        scores: How products become weights.
        copied: Elements of keys copied for one call, at most.

    Returns:
        (1, H, N, D_v).
    """
    if isinstance(tree, ChainPlan):
        return _attend_chains(query, key, value, tree, scores.scaling)
    return _attend_blocks(query, key, value, tree, scores, copied)


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
    scores: Scores,
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
            scores,
            use_reentrant=False,
        )
        for part in (slice(start, start + at_once) for start in range(0, blocks, at_once))
    ]
    mixed = torch.cat(cast(list[Tensor], parts))
    # (blocks, H, Q, D_v) -> (1, H, N, D_v)
    return mixed.transpose(0, 1).reshape(1, heads, blocks * block, -1)[:, :, :nodes]


def _attend(
    queries: Tensor,
    key: Tensor,
    value: Tensor,
    columns: Tensor,
    attends: Tensor,
    scores: Scores,
) -> Tensor:
    """(blocks, H, Q, D) of queries to (blocks, H, Q, D_v) of results."""
    heads = queries.shape[1]
    keys, values = _gather(key, columns, heads), _gather(value, columns, heads)
    if not scores.plain:
        return _weights(queries, keys, attends, scores).to(values.dtype) @ values
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=attends, scale=scores.scaling
    )


def _weights(queries: Tensor, keys: Tensor, attends: Tensor, scores: Scores) -> Tensor:
    """Compute softmax of capped products beside the heads' sinks; (blocks, H, Q, K)."""
    scaling = queries.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    products = (queries @ keys.mT * scaling).float()
    if scores.softcap is not None:
        products = scores.softcap * torch.tanh(products / scores.softcap)
    products = products.masked_fill(~attends, -torch.inf)
    if scores.sinks is None:
        return products.softmax(dim=-1)
    sinks = scores.sinks.float()[:, None, None].expand(*products.shape[:-1], 1)
    return torch.cat((products, sinks), dim=-1).softmax(dim=-1)[..., :-1]


def _gather(states: Tensor, columns: Tensor, heads: int) -> Tensor:
    """(H_kv, N, D) -> (blocks, H, K, D)."""
    groups, _, width = states.shape
    picked = states.transpose(0, 1).index_select(0, columns.flatten())
    picked = picked.view(*columns.shape, groups, width).transpose(1, 2)
    return picked.repeat_interleave(heads // groups, dim=1)
