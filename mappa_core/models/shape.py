"""Counts a decoder's weights and what it keeps per token, from its shape alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with grouped queries and a gated feed-forward layer."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    tied: bool
    head_norms: bool = False
    """Queries and keys are normalised per head (Qwen3)."""

    @property
    def parameters(self) -> int:
        """Count all weights."""
        attention = 2 * self.hidden * (self._queries + self._keys)
        norms = 2 * self.hidden + (2 * self.head_width if self.head_norms else 0)
        layer = attention + 3 * self.hidden * self.intermediate + norms
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden

    def adapter_parameters(self, rank: int) -> int:
        """Count the weights of a LoRA on every linear layer but the output."""
        ends = 2 * (self.hidden + self._queries) + 2 * (self.hidden + self._keys)
        return self.layers * rank * (ends + 3 * (self.hidden + self.intermediate))

    @property
    def cache_bytes_per_token(self) -> int:
        """Measure keys and values of one token in bfloat16."""
        return 2 * 2 * self.layers * self._keys

    @property
    def layer_bytes_per_token(self) -> int:
        """Measure what one layer keeps of a token for its backward pass, in bfloat16.

        Inputs of both norms (also as float32) and of the linear layers, queries, keys, values,
        gate, up and their product; the attention's copies of keys are apart.
        """
        widths = 4 * self.hidden + 2 * self._queries + 2 * self._keys + 4 * self.intermediate
        return 2 * widths + 8 * self.hidden

    @property
    def _queries(self) -> int:
        return self.heads * self.head_width

    @property
    def _keys(self) -> int:
        return self.kv_heads * self.head_width


QWEN3_4B = ModelShape(
    layers=36,
    hidden=2560,
    heads=32,
    kv_heads=8,
    head_width=128,
    intermediate=9728,
    vocabulary=151_936,
    tied=True,
    head_norms=True,
)
QWEN3_14B = replace(QWEN3_4B, layers=40, hidden=5120, heads=40, intermediate=17_408, tied=False)
QWEN3_32B = replace(QWEN3_14B, layers=64, heads=64, intermediate=25_600)
SMOLLM2_135M = ModelShape(
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    head_width=64,
    intermediate=1536,
    vocabulary=49_152,
    tied=True,
)
KNOWN: Mapping[str, ModelShape] = {
    "smollm2-135m-instruct": SMOLLM2_135M,
    "Qwen/Qwen3-4B": QWEN3_4B,
    "Qwen/Qwen3-4B-Thinking-2507": QWEN3_4B,
    "Qwen/Qwen3-4B-Instruct-2507": QWEN3_4B,
    "Qwen/Qwen3-14B": QWEN3_14B,
    "Qwen/Qwen3-32B": QWEN3_32B,
}
"""Models of the presets, and larger ones of a family, so that a plan needs no download."""


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys under which a mixture of experts says how many it has."""


def shape_of(config: Mapping[str, object]) -> ModelShape:
    """Read the shape from a model's `config.json`.

    Raises:
        KeyError: It names its sizes in another way, or has experts, which are not counted.
    """
    if experts := sorted(key for key in config if key in _EXPERTS and config[key]):
        raise KeyError(f"what its {experts[0]} weigh")

    def size(name: str) -> int:
        value = config[name]
        if not isinstance(value, int):
            raise KeyError(name)
        return value

    heads = size("num_attention_heads")
    return ModelShape(
        layers=size("num_hidden_layers"),
        hidden=size("hidden_size"),
        heads=heads,
        kv_heads=size("num_key_value_heads"),
        head_width=size("head_dim") if config.get("head_dim") else size("hidden_size") // heads,
        intermediate=size("intermediate_size"),
        vocabulary=size("vocab_size"),
        tied=bool(config.get("tie_word_embeddings")),
        head_norms=config.get("model_type") == "qwen3",
    )
