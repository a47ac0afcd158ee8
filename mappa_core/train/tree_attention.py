"""Attends over a prefix tree as it was planned: sequence by sequence, block by block, or in parts.

Blocks, padded to the longest union of ancestors, are one batched call, or several where their
copies of the keys would take too much memory. The result is that of dense masked attention.
"""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mappa_core.train.attention_parts import attend_parts
from mappa_core.train.shared_root import RootOfLayer
from mappa_core.train.tree_plans import AttentionPlan, BlockPlan, ChainPlan, PartsPlan, Scores

COPIED = 2**26
"""Elements of keys copied for one call; 256 MiB in float32. Long sequences take several calls."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: AttentionPlan,
    scores: Scores,
    copied: int = COPIED,
    root: RootOfLayer | None = None,
) -> Tensor:
    """Compute attention of every node to itself and the ancestors that it sees.

    Args:
        query: (1, H, N, D) with rotary positions applied.
        key: (1, H_kv, N, D); each of its heads serves H / H_kv query heads.
        value: (1, H_kv, N, D_v).
        tree: The spans or parts, where `scores` are plain, or the blocks.
        scores: How products become weights.
        copied: Elements of keys copied for one call, at most.
        root: What is shared with another pass, where the tree is planned in parts.

    Returns:
        (1, H, N, D_v).
    """
    if isinstance(tree, ChainPlan):
        return _attend_chains(query, key, value, tree, scores.scaling)
    if isinstance(tree, PartsPlan):
        return attend_parts((query, key, value), tree, scores.scaling, copied, root)
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
