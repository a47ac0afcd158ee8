"""Reads prefix trees with the model: in one pass over the tree, or its sequences padded.

    tree     each distinct token once; layers attend along the tree, each by its own mask
    padded   each sequence a row, through the model's own attention: for models whose layers read
             more than an attention over ancestors does (recurrent ones); slower

Either gives the hidden states of the tree's nodes; what is made of them is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import causal_mask_function

from mappa_core.train.batches import SHORTEST_ROOT
from mappa_core.train.learners.head import OutputHead, decoder_of
from mappa_core.train.prefix_tree import (
    PrefixTree,
    Tokens,
    build,
    evenly,
    micro_batches,
    padded_micro_batches,
    root_of,
    unfold,
)
from mappa_core.train.shared_root import RootOfLayer, SharedRoot
from mappa_core.train.token_logprobs import TokenLogprobs
from mappa_core.train.tree_attention import attend
from mappa_core.train.tree_plans import Scores, Sees, TreePlans

ATTENTION = "mappa_prefix_tree"
BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings that turn by the longest sequence of a pass, so that each is read alone."""

Way: TypeAlias = Literal["tree", "padded"]


def _tree_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Sees | None,
    tree: TreePlans,
    **layer: Any,  # noqa: ANN401
) -> tuple[Tensor, None]:
    """Fulfil the attention interface of transformers: (1, H, N, D) in, (1, N, H, D) out."""
    scores = Scores(
        scaling=layer.get("scaling"), softcap=layer.get("softcap"), sinks=layer.get("s_aux")
    )
    root = (
        None
        if tree.root is None
        else RootOfLayer(shared=tree.root, layer=next(tree.calls), takes=tree.takes)
    )
    mixed = attend(query, key, value, tree.of(attention_mask, scores), scores, root=root)
    return mixed.transpose(1, 2).contiguous(), None


def _tree_mask(
    *,
    mask_function: Callable[[int, int, Tensor, Tensor], Tensor],
    **_: Any,  # noqa: ANN401
) -> Sees | None:
    """Fulfil the mask interface of transformers: the layer's mask as a function of positions."""
    if mask_function is causal_mask_function:
        return None

    def sees(query: Tensor, key: Tensor) -> Tensor:
        return mask_function(0, 0, query, key)

    return sees


AttentionInterface.register(ATTENTION, _tree_attention)
AttentionMaskInterface.register(ATTENTION, _tree_mask)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a model reads."""

    base: PreTrainedModel
    head: OutputHead
    way: Way
    attention: str
    """Of the model while it reads so, by its name in transformers."""
    budget_tokens: int
    """Of all passes at once: distinct tokens of trees, or padded ones."""
    products: torch.dtype = torch.float32
    """Type of the products of its layers."""
    at_once: int = 1
    """Passes that run at once and share the budget."""
    shares_root: bool = False
    """Whether of two passes at once the first computes the root for both."""

    @property
    def name(self) -> str:
        """Say how, for a message."""
        return "by tree" if self.way == "tree" else f"padded ({self.attention} attention)"

    @property
    def turns_by_length(self) -> bool:
        """Whether positions depend on a pass's longest sequence: the model keeps them meanwhile."""
        scaling = getattr(self.base.config.get_text_config(), "rope_parameters", None) or {}
        return scaling.get("rope_type") in BY_LENGTH

    @property
    def sees_all(self) -> bool:
        """Whether every layer reads the tree by plain attention to all ancestors."""
        if self.way == "padded":
            return False
        tree = build([[0]], [[0, 0]]).to(self.base.device)
        with torch.no_grad(), autocast(self.base, self.products):
            plans = self._tree(tree)[1]
        return plans.made.keys() == {(None, True)}

    def read(
        self, tree: PrefixTree, temperature: float, root: SharedRoot | None = None
    ) -> TokenLogprobs:
        """Read log-probability and entropy of all response tokens of a tree, (sum of T,) each.

        Both are of softmax(logits / temperature), which the tokens were sampled from. `root` is
        what another pass computes for this one, where the tree has a root, or this one for it.
        """
        tree = tree.to(self.base.device)
        with autocast(self.base, self.products):
            states = self._padded(tree) if self.way == "padded" else self._tree(tree, root)[0]
        edges = self.head.read(
            states.index_select(0, tree.predictors),
            tree.edge_predictors,
            tree.edge_tokens,
            temperature,
        )
        entropies = None if edges.entropies is None else edges.entropies[tree.reads]
        return TokenLogprobs(
            logprobs=edges.logprobs.index_select(0, tree.reads), entropies=entropies
        )

    def cut(self, prompts: Sequence[Tokens], responses: Sequence[Tokens]) -> list[list[int]]:
        """Split the indices of sequences into micro-batches, so many that all passes get some."""
        budget = 1 if self.turns_by_length else self.budget_tokens
        root = root_of(prompts) if self.shares_root else 0
        if root < SHORTEST_ROOT:
            root = 0

        def cut(tokens: int) -> list[list[int]]:
            if self.way == "padded":
                return padded_micro_batches(prompts, responses, tokens)
            return micro_batches(prompts, responses, tokens, root)

        return evenly(cut, budget // self.at_once, self.at_once)

    def _tree(self, tree: PrefixTree, root: SharedRoot | None = None) -> tuple[Tensor, TreePlans]:
        """Compute the nodes' hidden states in one row, (N, D); also how layers read them."""
        plans = TreePlans(ends=tree.ends, depths=tree.depths, root=root, takes=tree.root > 0)
        states = decoder_of(self.base)(
            input_ids=tree.token_ids[None],
            # A mask of ones, or positions that step back would be taken for packed sequences.
            attention_mask=torch.ones_like(tree.token_ids[None]),
            position_ids=tree.depths[None],
            use_cache=False,
            tree=plans,
        ).last_hidden_state[0]
        return states, plans

    def _padded(self, tree: PrefixTree) -> Tensor:
        """Compute them sequence by sequence, (N, D)."""
        unfolded = unfold(tree)
        states = decoder_of(self.base)(
            input_ids=unfolded.token_ids, attention_mask=unfolded.real, use_cache=False
        ).last_hidden_state
        return states[unfolded.rows, unfolded.columns]


def autocast(base: PreTrainedModel, products: torch.dtype) -> torch.autocast:
    """Compute products in bfloat16 where they are to be, whatever the weights are in."""
    return torch.autocast(base.device.type, torch.bfloat16, enabled=products is torch.bfloat16)
