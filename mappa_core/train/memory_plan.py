"""What a run keeps where on one GPU, by arithmetic, before anything is started.

    rollout    servers: weights, key-value cache          (asleep during the update: colocate)
               the torch learner's model, which stays
    update     one agent at a time: weights, gradients, optimiser, activations, logits

A checkpoint passes through the CPU's memory: read it is there twice, as bytes and as tensors, and
written it is there once.

Bytes per weight of mixed precision are those of ZeRO (arXiv 1910.02054, section 3.1): 2 for the
bfloat16 weight, 2 for its gradient, 12 for float32 master and AdamW's two moments. Activations
follow Korthikanti et al. (arXiv 2205.05198, section 4), for a gated feed-forward layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mappa_core.app.config import TrainConfig

GB = 10**9
CONTEXT_BYTES = 0.8 * GB
"""Of one process on a GPU: CUDA's context and libraries."""
STEP_BYTES = 1.5 * GB
"""A server's activations of one step, beside weights and cache."""
LOGIT_ROWS = 256
"""Rows of logits held at once: `token_logprobs.ROWS`."""
COPIED_KEYS = 2**26
"""Elements of keys copied for one call of the tree attention: `tree_attention.COPIED`."""

Phase = Literal["rollout", "update"]


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
        """Weights in all."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys
        norms = 2 * self.hidden + (2 * self.head_width if self.head_norms else 0)
        layer = attention + 3 * self.hidden * self.intermediate + norms
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden

    def adapter_parameters(self, rank: int) -> int:
        """Weights of a LoRA on every linear layer but the output."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        ends = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        return self.layers * rank * (ends + 3 * (self.hidden + self.intermediate))

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_width

    @property
    def layer_bytes_per_token(self) -> int:
        """What one layer keeps of a token for its backward pass, in bfloat16.

        Inputs of both norms (also as float32) and of the linear layers, queries, keys, values,
        gate, up and their product; the attention's copies of keys are apart.
        """
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        return 2 * (4 * self.hidden + 2 * queries + 2 * keys + 4 * self.intermediate) + (
            8 * self.hidden
        )


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
KNOWN: Mapping[str, ModelShape] = {
    "Qwen/Qwen3-4B": QWEN3_4B,
    "Qwen/Qwen3-4B-Thinking-2507": QWEN3_4B,
    "Qwen/Qwen3-4B-Instruct-2507": QWEN3_4B,
}
"""Models of the presets, so that a plan needs no download."""


def shape_of(config: Mapping[str, object]) -> ModelShape:
    """The shape in a model's `config.json`.

    Raises:
        KeyError: It names its sizes in another way.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that takes memory."""

    phase: Phase
    what: str
    gpu_bytes: float = 0.0
    host_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What goes where, and whether it fits."""

    items: tuple[Item, ...]
    gpu_bytes: float
    """Of the one GPU."""
    cached_tokens: int
    """That each server's key-value cache holds."""
    longest: int
    """Tokens of the longest sequence; a cache must hold one."""

    def peak(self, phase: Phase) -> float:
        """Bytes on the GPU in one phase."""
        return sum(item.gpu_bytes for item in self.items if item.phase == phase)

    @property
    def host_bytes(self) -> float:
        """Bytes in the CPU's memory, at most."""
        return max(
            sum(item.host_bytes for item in self.items if item.phase == phase)
            for phase in ("rollout", "update")
        )

    @property
    def fits(self) -> bool:
        """Whether both phases fit on the GPU and the longest sequence into a cache."""
        highest = max(self.peak("rollout"), self.peak("update"))
        return highest <= self.gpu_bytes and self.cached_tokens >= self.longest


def plan(shape: ModelShape, config: TrainConfig, agents: int, gpu_bytes: float) -> MemoryPlan:
    """The plan of one run with all its agents on one GPU.

    Args:
        shape: Of the base model.
        config: Servers, learner and lengths.
        agents: How many are trained.
        gpu_bytes: Of the GPU.
    """
    full = config.learner.weights == "full"
    servers = agents if full or config.engine.serving == "merged" else 1
    share = config.engine.gpu_memory_utilization * gpu_bytes / servers
    loaded = 2 * shape.parameters
    if not full and servers == 1:
        loaded += agents * 2 * shape.adapter_parameters(config.learner.lora.rank)
    cache = max(0.0, share - loaded - STEP_BYTES)
    rollout = (
        Item(phase="rollout", what=f"{servers} x weights", gpu_bytes=servers * loaded),
        Item(phase="rollout", what=f"{servers} x key-value cache", gpu_bytes=servers * cache),
        Item(phase="rollout", what=f"{servers} x one step", gpu_bytes=servers * STEP_BYTES),
    )
    return MemoryPlan(
        items=(
            *rollout,
            *_staying(shape, config),
            *_beside(rollout, config, servers, loaded),
            *_learner(shape, config),
            *_checkpoints(shape, config),
        ),
        gpu_bytes=gpu_bytes,
        cached_tokens=int(cache / shape.cache_bytes_per_token),
        longest=config.engine.max_model_length,
    )


def _staying(shape: ModelShape, config: TrainConfig) -> tuple[Item, ...]:
    """What a learner keeps while agents play: DeepSpeed's ranks end with every update."""
    learner = config.learner
    if learner.backend != "torch":
        return ()
    base = (4 if learner.weights == "full" else 2) * shape.parameters
    adapter = 0
    if learner.weights == "lora":
        adapter = 4 * shape.adapter_parameters(learner.lora.rank)
    return (
        Item(
            phase="rollout",
            what="the learner's model (loaded through the CPU)",
            gpu_bytes=base + adapter,
            host_bytes=base,
        ),
        Item(phase="rollout", what="the learner's process", gpu_bytes=CONTEXT_BYTES),
    )


def _beside(
    rollout: tuple[Item, ...], config: TrainConfig, servers: int, loaded: int
) -> tuple[Item, ...]:
    """What servers keep while agents learn."""
    if config.engine.colocate:
        return (
            Item(
                phase="update",
                what=f"{servers} sleeping servers",
                gpu_bytes=servers * CONTEXT_BYTES,
                host_bytes=servers * loaded,
            ),
        )
    held = sum(item.gpu_bytes for item in rollout)
    return (Item(phase="update", what="servers, awake", gpu_bytes=held),)


def _learner(shape: ModelShape, config: TrainConfig) -> tuple[Item, ...]:
    """One agent's update: weights, gradients, optimiser, activations, logits."""
    learner = config.learner
    tokens = learner.micro_batch_tokens
    kept = shape.layers * shape.layer_bytes_per_token
    if learner.gradient_checkpointing:
        # Every layer's input, and one layer at a time with its gradients.
        kept = 2 * shape.hidden * shape.layers + 2 * shape.layer_bytes_per_token
    trained_output = learner.weights == "full"
    logits = 4 * (
        2 * LOGIT_ROWS * shape.vocabulary
        + (2 if trained_output else 1) * shape.vocabulary * shape.hidden
    )
    # The tree's mask, once as it is made and once by blocks, and the copies of one call.
    attention = 2 * tokens**2 + 6 * 2 * COPIED_KEYS
    return (
        *_state(shape, config),
        Item(phase="update", what=f"activations, {tokens} tokens", gpu_bytes=tokens * kept),
        Item(phase="update", what="attention's mask and copies", gpu_bytes=attention),
        Item(phase="update", what="logits and output weights", gpu_bytes=logits),
        Item(phase="update", what="the learner's process", gpu_bytes=CONTEXT_BYTES),
    )


def _checkpoints(shape: ModelShape, config: TrainConfig) -> tuple[Item, ...]:
    """What of weights and moments passes through the CPU's memory, in float32."""
    learner, weights = config.learner, shape.parameters
    lora = learner.weights == "lora"
    trained = shape.adapter_parameters(learner.lora.rank) if lora else weights
    deepspeed = learner.backend == "deepspeed"
    # Every rank reads two moments, twice there; the first one writes them and the weights.
    ranks = learner.deepspeed.ranks if deepspeed else 1
    passing = Item(
        phase="update",
        what="moments as they are read, or a checkpoint to write",
        host_bytes=max(16 * ranks, 12) * trained,
    )
    if not deepspeed:
        return (passing,)
    before = Item(phase="update", what="weights before the update", host_bytes=4 * trained)
    base = Item(phase="update", what="frozen base, as it is loaded", host_bytes=2 * ranks * weights)
    return (passing, before, base) if lora else (passing, before)


def _state(shape: ModelShape, config: TrainConfig) -> tuple[Item, ...]:
    learner, weights = config.learner, shape.parameters
    if learner.weights == "lora":
        adapter = shape.adapter_parameters(learner.lora.rank)
        return (
            Item(phase="update", what="frozen base", gpu_bytes=2 * weights),
            Item(phase="update", what="adapter, gradients, moments", gpu_bytes=16 * adapter),
        )
    if learner.backend == "torch":
        return (
            Item(phase="update", what="float32 weights and gradients", gpu_bytes=8 * weights),
            Item(phase="update", what="AdamW's moments", gpu_bytes=8 * weights),
        )
    elsewhere = learner.deepspeed.offload
    return (
        Item(phase="update", what="bfloat16 weights and gradients", gpu_bytes=4 * weights),
        Item(
            phase="update",
            what="float32 masters, gradients, moments",
            gpu_bytes=0 if elsewhere else 16 * weights,
            host_bytes=16 * weights if elsewhere else 0,
        ),
    )
