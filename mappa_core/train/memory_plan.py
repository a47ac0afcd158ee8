"""Plans what a run keeps where, on one GPU or on the CPU, by arithmetic, before it is started.

    rollout    servers: weights, key-value cache          (asleep during the update: colocate)
               the torch learner's model, which stays; of DeepSpeed's ranks the empty process
    update     one agent at a time: weights, gradients, optimiser, activations, logits

The torch learner's checkpoints pass through the CPU's memory: read they are there twice, as bytes
and as tensors, and written once. DeepSpeed's ranks read and write one tensor at a time.

The update is that of a model that is read by tree. One that is read padded holds as many tokens, as
padding counts in its micro-batches, but its own attention in place of the tree's mask and copies.

Bytes per weight of mixed precision are those of ZeRO (arXiv 1910.02054, section 3.1): 2 for the
bfloat16 weight, 2 for its gradient, 12 for float32 master and AdamW's two moments. Activations
follow Korthikanti et al. (arXiv 2205.05198, section 4), for a gated feed-forward layer.

On a CPU all is float32, servers stay awake, and a sequence is read whole, however long: the two
presets for a CPU take 9.8 and 16.0 GB by it; their processes were seen to take 8.4 and 16.6.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mappa_core.models.shape import ModelShape
from mappa_core.train.config import LearnerConfig

GB = 10**9
CONTEXT_BYTES = 0.8 * GB
"""Of one process on a GPU: CUDA's context and libraries."""
STEP_BYTES = 1.5 * GB
"""A server's activations of one step, apart from weights and cache."""
SHARDED_STAGE = 3
"""Of ZeRO: from it on each rank loads its part of the weights alone."""
LOGIT_ROWS = 256
"""Rows of logits held at once: `token_logprobs.ROWS`."""
COPIED_KEYS = 2**26
"""Elements of keys copied for one call of the tree attention: `tree_attention.COPIED`."""

SERVER_BYTES = 1.15 * GB
"""Of a server's processes on a CPU apart from weights and cache, measured: interpreter, libraries,
a step's activations."""
LEARNER_BYTES = 0.8 * GB
"""The same of the process that trains."""

Phase = Literal["rollout", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The inference servers of a run, as far as memory goes."""

    agents: int
    """How many policies they serve."""
    merged: bool
    """Whether every agent has a server of its own, for merged or whole weights."""
    gpu_share: float
    """Of the GPU's memory, all of them together."""
    sleep: bool
    """Whether they leave the GPU to the learner during an update."""
    longest: int
    """Tokens of the longest sequence; a cache must hold one."""


@dataclass(frozen=True, slots=True)
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
    machine_bytes: float | None = None
    """Of the CPU's memory, where all of the run is there; None for a GPU."""
    cache_bytes: float
    """Of each server's key-value cache."""
    cached_tokens: int
    """That it holds."""
    longest: int
    """Tokens of the longest sequence; a cache must hold one."""

    def peak(self, phase: Phase) -> float:
        """Sum the bytes on the GPU in one phase."""
        return sum(item.gpu_bytes for item in self.items if item.phase == phase)

    @property
    def host_bytes(self) -> float:
        """Sum the bytes in the CPU's memory, at most."""
        return max(self.host_peak("rollout"), self.host_peak("update"))

    def host_peak(self, phase: Phase) -> float:
        """Sum the bytes in the CPU's memory in one phase."""
        return sum(item.host_bytes for item in self.items if item.phase == phase)

    @property
    def fits(self) -> bool:
        """Tell whether both phases fit, and the longest sequence into a cache."""
        return self.needed_bytes <= self.limit_bytes and self.cached_tokens >= self.longest

    @property
    def needed_bytes(self) -> float:
        """Take the higher peak of the memory that is planned: the GPU's, or the CPU's."""
        if self.machine_bytes is not None:
            return self.host_bytes
        return max(self.peak("rollout"), self.peak("update"))

    @property
    def limit_bytes(self) -> float:
        """Give how much of it there is."""
        return self.gpu_bytes if self.machine_bytes is None else self.machine_bytes


def plan(
    shape: ModelShape, learner: LearnerConfig, servers: Servers, gpu_bytes: float
) -> MemoryPlan:
    """Plan one run with all its agents on one GPU."""
    count = servers.agents if servers.merged else 1
    loaded = 2 * shape.parameters
    if count == 1 and learner.weights == "lora":
        loaded += servers.agents * 2 * shape.adapter_parameters(learner.lora.rank)
    share = servers.gpu_share * gpu_bytes / count
    cache = max(0.0, share - loaded - STEP_BYTES)
    rollout = (
        Item("rollout", f"{count} x weights", count * loaded),
        Item("rollout", f"{count} x key-value cache", count * cache),
        Item("rollout", f"{count} x one step", count * STEP_BYTES),
    )
    held = Item("update", "servers, awake", sum(item.gpu_bytes for item in rollout))
    if servers.sleep:
        held = Item("update", f"{count} sleeping servers", count * CONTEXT_BYTES, count * loaded)
    needs = _LearnerNeeds(shape, learner)
    return MemoryPlan(
        items=(*rollout, *needs.staying(), held, *needs.update(), *needs.checkpoints()),
        gpu_bytes=gpu_bytes,
        cache_bytes=cache,
        cached_tokens=int(cache / shape.cache_bytes_per_token),
        longest=servers.longest,
    )


def plan_on_cpu(
    shape: ModelShape,
    learner: LearnerConfig,
    servers: Servers,
    *,
    cache_bytes: float,
    machine_bytes: float,
) -> MemoryPlan:
    """Plan one run with all its agents, servers and the torch learner on a CPU.

    Args:
        shape: Of the model.
        learner: What trains.
        servers: What plays.
        cache_bytes: Of each server's key-value cache.
        machine_bytes: Of memory there are.
    """
    count = servers.agents if servers.merged else 1
    base = 4.0 * shape.parameters
    trained = 16 * shape.adapter_parameters(learner.lora.rank)
    if learner.weights == "full":
        trained = 12 * shape.parameters
    serving = (
        (f"{count} x weights", count * base),
        (f"{count} x key-value cache", count * cache_bytes),
        (f"{count} x a server's processes", count * SERVER_BYTES),
        ("the learner's process", LEARNER_BYTES),
        ("the learner's model", base),
    )
    # A micro-batch holds a sequence at least, which no limit cuts.
    tokens = max(learner.micro_batch_tokens, servers.longest)
    kept = 2 * shape.layers * shape.layer_bytes_per_token
    if learner.gradient_checkpointing:
        kept = 4 * shape.hidden * shape.layers + 4 * shape.layer_bytes_per_token
    updating = (
        ("weights that are trained: gradients, moments", trained),
        (f"activations, {tokens} tokens", tokens * kept),
        ("logits and output weights", 4 * shape.vocabulary * (2 * LOGIT_ROWS + shape.hidden)),
    )
    return MemoryPlan(
        items=(
            *(Item("rollout", what, host_bytes=size) for what, size in serving),
            *(Item("update", what, host_bytes=size) for what, size in (*serving, *updating)),
        ),
        gpu_bytes=0,
        machine_bytes=machine_bytes,
        cache_bytes=cache_bytes,
        cached_tokens=int(cache_bytes / (2 * shape.cache_bytes_per_token)),
        longest=servers.longest,
    )


class _LearnerNeeds:
    """What a learner takes, item by item."""

    def __init__(self, shape: ModelShape, learner: LearnerConfig) -> None:
        self._shape, self._learner = shape, learner
        self._lora = learner.weights == "lora"
        self._deepspeed = learner.backend == "deepspeed"
        self._weights = shape.parameters
        self._adapter = shape.adapter_parameters(learner.lora.rank)

    def staying(self) -> Iterator[Item]:
        """List what stays while agents play; DeepSpeed's ranks let go of all they hold."""
        if self._deepspeed:
            yield Item("rollout", "the learner's process", CONTEXT_BYTES)
            return
        base = (2 if self._lora else 4) * self._weights
        model = base + (4 * self._adapter if self._lora else 0)
        yield Item("rollout", "the learner's model (loaded through the CPU)", model, base)
        yield Item("rollout", "the learner's process", CONTEXT_BYTES)

    def update(self) -> Iterator[Item]:
        """List one agent's update: weights, gradients, optimiser, activations, logits."""
        shape, tokens = self._shape, self._learner.micro_batch_tokens
        kept = shape.layers * shape.layer_bytes_per_token
        if self._learner.gradient_checkpointing:
            # Every layer's input, and one layer at a time with its gradients.
            kept = 2 * shape.hidden * shape.layers + 2 * shape.layer_bytes_per_token
        outputs = (1 if self._lora else 2) * shape.vocabulary * shape.hidden
        logits = 4 * (2 * LOGIT_ROWS * shape.vocabulary + outputs)
        # The tree's mask, once as it is made and once by blocks, and the copies of one call.
        attention = 2 * tokens**2 + 6 * 2 * COPIED_KEYS
        yield from self._state()
        yield Item("update", f"activations, {tokens} tokens", tokens * kept)
        yield Item("update", "attention's mask and copies", attention)
        yield Item("update", "logits and output weights", logits)
        yield Item("update", "the learner's process", CONTEXT_BYTES)

    def _state(self) -> Iterator[Item]:
        weights = self._weights
        if self._lora:
            yield Item("update", "frozen base", 2 * weights)
            yield Item("update", "adapter, gradients, moments", 16 * self._adapter)
        elif not self._deepspeed:
            yield Item("update", "float32 weights and gradients", 8 * weights)
            yield Item("update", "AdamW's moments", 8 * weights)
        else:
            where = (0, 16 * weights) if self._learner.deepspeed.offload else (16 * weights, 0)
            yield Item("update", "bfloat16 weights and gradients", 4 * weights)
            yield Item("update", "float32 masters, gradients, moments", *where)

    def checkpoints(self) -> Iterator[Item]:
        """List what of weights and moments passes through the CPU's memory, in float32."""
        if not self._deepspeed:
            trained = self._adapter if self._lora else self._weights
            what = "moments as they are read, or a checkpoint to write"
            yield Item("update", what, host_bytes=16 * trained)
            return
        if self._lora:
            ranks, stage = self._learner.deepspeed.ranks, self._learner.deepspeed.stage
            yield Item("update", "a fresh adapter", host_bytes=4 * ranks * self._adapter)
            whole = 0 if stage == SHARDED_STAGE else 2 * ranks * self._weights
            yield Item("update", "frozen base, as it is loaded", host_bytes=whole)
