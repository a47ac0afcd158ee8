"""Plans which keys the queries of a prefix tree read.

    chains   sequences that share nothing: each is plain causal attention on its own span
    blocks   each block of neighbouring queries reads the union of its ancestors, under a mask
    parts    a CPU's: long chains are read without mask or copies, what is left of them by blocks

A token attends to its ancestors only, and those are few: the dense N x N product would mostly
compute what the mask throws away. Depth-first order keeps relatives together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

import torch
from torch import Tensor

from mappa_core.train.prefix_tree import ancestor_mask
from mappa_core.train.shared_root import SharedRoot

BLOCK = 64
"""Queries per block: small enough to leave cousins out, large enough to keep the cores busy."""
SMALL_BLOCK = 32
"""The same beside long chains, whose keys no block needs."""
LONG = 32
"""Nodes of a chain from which on it is read apart."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Nodes of which each but the last has the next as its only child."""

    start: int
    end: int
    """The first node after it."""
    below: int
    """All nodes from `end` up to this one are descendants of all of its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsPlan:
    """Each node's ancestors in parts, every ancestor in one of them."""

    chains: tuple[Chain, ...]
    """The long ones: causal attention among a chain's nodes, and in full from all below it."""
    rows: Tensor
    """(R,) int64: nodes that are in a short chain or below one."""
    blocks: BlockPlan | None
    """Of those R rows, filled up with copies of the last: their keys in short chains."""


AttentionPlan: TypeAlias = ChainPlan | BlockPlan | PartsPlan
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
    root: SharedRoot | None = None
    """Nodes that another pass computes for this one, or this one for it; in parts alone."""
    takes: bool = False
    """Whether this pass is the one that does not compute them."""
    calls: Iterator[int] = field(default_factory=count)
    """Numbers the calls of a pass's layers, which are the same in both passes."""
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
        if seen is not None:
            return _blocks(seen, BLOCK)
        return parts(self.ends) if self.ends.device.type == "cpu" else plan(self.ends)


def plan(ends: Tensor, block: int = BLOCK) -> AttentionPlan:
    """Plan by spans of the tree's sequences, or where these share tokens or are short, by blocks.

    `ends` is (N,), subtree ends in depth-first order; a block has Q queries.
    """
    chains = _chains(ends.tolist())
    # A call for each of many short sequences would cost more than blocks of several.
    alone = all(chain.end == chain.below for chain in chains)
    if alone and len(chains) * block <= ends.numel():
        return ChainPlan(spans=tuple((chain.start, chain.end) for chain in chains))
    return _blocks(ancestor_mask(ends), block)


def parts(ends: Tensor, long: int = LONG, block: int = SMALL_BLOCK) -> PartsPlan:
    """Plan by chains of at least `long` nodes, and by blocks what is in shorter ones.

    `ends` is (N,), subtree ends in depth-first order; a block has Q queries.
    """
    chains = tuple(chain for chain in _chains(ends.tolist()) if chain.end - chain.start >= long)
    left = ancestor_mask(ends)
    for chain in chains:
        left[:, chain.start : chain.end] = False
    rows = left.any(dim=1).nonzero()[:, 0]
    return PartsPlan(
        chains=chains,
        rows=rows,
        blocks=_blocks(left[rows], block) if len(rows) else None,
    )


def _chains(ends: list[int]) -> list[Chain]:
    """Cut the tree where a node has no child or several."""
    # The first child of a node is the next one, and its only child where both subtrees end alike.
    cuts = [i + 1 for i in range(len(ends)) if i + 1 == len(ends) or ends[i] != ends[i + 1]]
    starts = [0, *cuts[:-1]]
    return [
        Chain(start=start, end=end, below=ends[start])
        for start, end in zip(starts, cuts, strict=True)
    ]


def _blocks(mask: Tensor, block: int) -> BlockPlan:
    """Cut the rows of the (R, N) mask into blocks and keep the columns each one needs."""
    # The last block is filled up with copies of the last row, so that no row is all -inf.
    rows = torch.arange(-(-len(mask) // block) * block, device=mask.device)
    mask = mask[rows.clamp_max(len(mask) - 1)].view(-1, block, mask.shape[1])
    needed = mask.any(dim=1)
    # A stable sort puts needed columns first, in depth-first order; what follows is padding.
    columns = needed.logical_not().sort(dim=1, stable=True).indices[:, : int(needed.sum(1).max())]
    attends = mask.gather(2, columns[:, None, :].expand(-1, block, -1))
    return BlockPlan(columns=columns, attends=attends[:, None])
