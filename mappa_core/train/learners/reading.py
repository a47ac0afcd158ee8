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

from mappa_core.train.learners.head import OutputHead, decoder_of
from mappa_core.train.prefix_tree import (
    PrefixTree,
    Tokens,
    evenly,
    micro_batches,
    padded_micro_batches,
    unfold,
)
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
    mixed = attend(query, key, value, tree.of(attention_mask, scores), scores)
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

    @property
    def name(self) -> str:
        """Say how, for a message."""
        return "by tree" if self.way == "tree" else f"padded ({self.attention} attention)"

    @property
    def turns_by_length(self) -> bool:
        """Whether positions depend on a pass's longest sequence: the model keeps them meanwhile."""
        scaling = getattr(self.base.config.get_text_config(), "rope_parameters", None) or {}
        return scaling.get("rope_type") in BY_LENGTH

    def read(self, tree: PrefixTree, temperature: float) -> TokenLogprobs:
        """Read log-probability and entropy of all response tokens of a tree, (sum of T,) each.

        Both are of softmax(logits / temperature), which the tokens were sampled from.
        """
        tree = tree.to(self.base.device)
        with autocast(self.base, self.products):
            states = (self._padded if self.way == "padded" else self._tree)(tree)
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
        cut = padded_micro_batches if self.way == "padded" else micro_batches
        return evenly(
            lambda tokens: cut(prompts, responses, tokens), budget // self.at_once, self.at_once
        )

    def _tree(self, tree: PrefixTree) -> Tensor:
        """Compute the nodes' hidden states in one row, (N, D)."""
        return decoder_of(self.base)(
            input_ids=tree.token_ids[None],
            # A mask of ones, or positions that step back would be taken for packed sequences.
            attention_mask=torch.ones_like(tree.token_ids[None]),
            position_ids=tree.depths[None],
            use_cache=False,
            tree=TreePlans(ends=tree.ends, depths=tree.depths),
        ).last_hidden_state[0]

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
