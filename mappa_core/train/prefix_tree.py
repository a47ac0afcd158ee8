"""Puts sequences that share their beginnings into one tree, so that these are computed once.

The samples of one problem share its prompt, and all prompts share their worked examples. A trie
over the token ids holds every distinct prefix once; written out depth first it is one row of
tokens that a causal language model can read in a single forward pass, if each token attends to
its ancestors only and sits at the position of its depth:

    a b c x      a b c ┬ x            token      a b c x y d
    a b c y   ─▶     │ └ y       ─▶   depth      0 1 2 3 3 2
    a b d            └ d              end        6 6 5 4 5 6     (a subtree is [i, end_i))

Hidden states, and so losses and gradients, are those of the separate sequences: attention and
position see the same values, only each once. A model that cannot be read so is given the tree's
sequences unfolded, one a row, padded on the right.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import torch
from torch import Tensor

Tokens = Sequence[int]
Cut: TypeAlias = Callable[[Sequence[Tokens], Sequence[Tokens]], list[list[int]]]
"""Splits the indices of sequences, given as prompts and responses, into micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """One micro-batch of B sequences as N distinct tokens, depth first.

    A response token is predicted at the node before it. E edges are the distinct pairs of such a
    node and a token sampled there; `reads` picks each response token's edge.
    """

    token_ids: Tensor
    """(N,) int64."""
    depths: Tensor
    """(N,) int64: position in the sequence, from 0."""
    ends: Tensor
    """(N,) int64: node i's subtree is the nodes [i, ends[i])."""
    predictors: Tensor
    """(M,) int64: the nodes whose hidden state predicts a response token, ascending."""
    edge_predictors: Tensor
    """(E,) int64: index into `predictors`."""
    edge_tokens: Tensor
    """(E,) int64: the token that was sampled there."""
    reads: Tensor
    """(sum of T,) int64: edge of every response token, sequence after sequence."""
    root: int = 0
    """Tokens above the first node, which all sequences begin with and another tree has."""

    @property
    def size(self) -> int:
        """Count N, the distinct tokens."""
        return self.token_ids.numel()

    def to(self, device: torch.device) -> "PrefixTree":
        """Copy the tree, its tensors on `device`."""
        tensors = (one.name for one in fields(self) if one.name != "root")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


def ancestor_mask(ends: Tensor) -> Tensor:
    """Mark which nodes a node may attend to: itself and its ancestors.

    (N,) subtree ends in depth-first order -> (N, N) bool, row attends to column: j <= i < ends[j].
    """
    nodes = torch.arange(ends.numel(), device=ends.device)
    return (nodes[None, :] <= nodes[:, None]) & (nodes[:, None] < ends[None, :])


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRows:
    """A tree's sequences side by side: S of them, each from the root to a leaf, L the longest."""

    token_ids: Tensor
    """(S, L) int64; 0 where padded."""
    real: Tensor
    """(S, L) int64: 1 for a token, 0 for padding."""
    rows: Tensor
    """(N,) int64: a sequence with node i in it."""
    columns: Tensor
    """(N,) int64: its place there."""


def unfold(tree: PrefixTree) -> PaddedRows:
    """Write each of the tree's sequences out as a row of its own.

    A node stands in the rows of all leaves below it; any of them has its hidden state.
    """
    nodes = torch.arange(tree.size, device=tree.ends.device)
    leaves = nodes[tree.ends == nodes + 1]
    row, node = ((nodes <= leaves[:, None]) & (leaves[:, None] < tree.ends)).nonzero(as_tuple=True)
    shape = (len(leaves), int(tree.depths.max()) + 1)
    token_ids, real = tree.token_ids.new_zeros(shape), tree.token_ids.new_zeros(shape)
    token_ids[row, tree.depths[node]] = tree.token_ids[node]
    real[row, tree.depths[node]] = 1
    # Depth first, the next leaf from a node on is in its subtree.
    rows = torch.searchsorted(leaves, nodes)
    return PaddedRows(token_ids=token_ids, real=real, rows=rows, columns=tree.depths)


def build(prompts: Sequence[Tokens], responses: Sequence[Tokens], root: int = 0) -> PrefixTree:
    """Build the tree of B sequences, of B prompts and B responses of T >= 1 tokens each.

    Their first `root` tokens, at most `root_of` them, are left to another tree.

    Raises:
        ValueError: A prompt or a response is empty.
    """
    if any(len(part) == 0 for part in (*prompts, *responses)):
        raise ValueError("a prompt and a response have at least one token each")
    # The last token predicts nothing, so no node is spent on it.
    inputs = [(*p, *r[:-1]) for p, r in zip(prompts, responses, strict=True)]
    token_ids, depths, ends, paths = _flatten(inputs)

    edges: dict[tuple[int, int], int] = {}
    reads: list[int] = []
    for path, prompt, response in zip(paths, prompts, responses, strict=True):
        pairs = zip(path[len(prompt) - 1 :], response, strict=True)
        reads.extend(edges.setdefault(pair, len(edges)) for pair in pairs)
    nodes = torch.tensor([node - root for node, _ in edges], dtype=torch.int64)
    predictors, edge_predictors = torch.unique(nodes, sorted=True, return_inverse=True)
    return PrefixTree(
        token_ids=torch.tensor(token_ids[root:]),
        depths=torch.tensor(depths[root:]),
        ends=torch.tensor(ends[root:]) - root,
        predictors=predictors,
        edge_predictors=edge_predictors,
        edge_tokens=torch.tensor([token for _, token in edges], dtype=torch.int64),
        reads=torch.tensor(reads, dtype=torch.int64),
        root=root,
    )


def root_of(prompts: Sequence[Tokens]) -> int:
    """Count the tokens that all prompts begin with, but for one that predicts a response's."""
    if not prompts:
        return 0
    # In sorted order the first and the last share least.
    ordered = [tuple(prompt) for prompt in prompts]
    return min(_shared(min(ordered), max(ordered)), min(map(len, ordered)) - 1)


def micro_batches(
    prompts: Sequence[Tokens], responses: Sequence[Tokens], budget_tokens: int, root: int = 0
) -> list[list[int]]:
    """Split the indices of the sequences so that each part's tree stays within the budget.

    Sequences that share most lie next to each other. A sequence longer than the budget is a part
    of its own. Of two parts, the second leaves the first `root` tokens to the first one's tree.
    """
    inputs = [(*p, *r[:-1]) for p, r in zip(prompts, responses, strict=True)]
    parts: list[list[int]] = []
    room, previous = 0, ()
    for index in sorted(range(len(inputs)), key=inputs.__getitem__):
        fresh = len(inputs[index]) - _shared(previous, inputs[index])
        if not parts or fresh > room:
            parts.append([])
            room, fresh = budget_tokens, len(inputs[index])
            fresh -= root if len(parts) % 2 == 0 else 0
        parts[-1].append(index)
        room -= fresh
        previous = inputs[index]
    return parts


def padded_micro_batches(
    prompts: Sequence[Tokens], responses: Sequence[Tokens], budget_tokens: int
) -> list[list[int]]:
    """Split the indices of the sequences so that each part, padded, stays within the budget.

    Sequences of like length lie together. One longer than the budget is a part of its own.
    """
    lengths = [len(p) + len(r) - 1 for p, r in zip(prompts, responses, strict=True)]
    parts: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not parts or (len(parts[-1]) + 1) * lengths[index] > budget_tokens:
            parts.append([])
        parts[-1].append(index)
    return parts


def evenly(
    cut: Callable[[int], list[list[int]]], budget_tokens: int, at_once: int
) -> list[list[int]]:
    """Cut into a multiple of `at_once` parts, where there are as many, of about one size.

    `cut` splits by a budget. Returned is its split by the smallest one that makes no more parts
    than the multiple above those that `budget_tokens` makes.
    """
    parts = cut(budget_tokens)
    if at_once == 1:
        return parts
    most = -(-len(parts) // at_once) * at_once
    smallest = bisect_left(range(budget_tokens), True, key=lambda budget: len(cut(budget)) <= most)
    return cut(smallest)


def _shared(left: Tokens, right: Tokens) -> int:
    """Measure the longest common prefix."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _flatten(
    inputs: Sequence[tuple[int, ...]],
) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """List tokens, depths and subtree ends depth first, and each input's path of nodes."""
    token_ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: list[list[int]] = [[] for _ in inputs]
    previous, path = (), list[int]()
    # In sorted order every sequence branches off the one before, which is depth first.
    for index in sorted(range(len(inputs)), key=inputs.__getitem__):
        shared = _shared(previous, inputs[index])
        for node in path[shared:]:
            ends[node] = len(token_ids)
        fresh = range(len(token_ids), len(token_ids) + len(inputs[index]) - shared)
        path = [*path[:shared], *fresh]
        token_ids.extend(inputs[index][shared:])
        depths.extend(range(shared, len(inputs[index])))
        ends.extend(0 for _ in fresh)
        paths[index], previous = path, inputs[index]
    for node in path:
        ends[node] = len(token_ids)
    return token_ids, depths, ends, paths
