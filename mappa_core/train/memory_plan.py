"""Plans what a run keeps where, on a GPU or on the CPU, by arithmetic, before it is started.

    rollout    servers: weights, key-value cache          (asleep during the update: colocate)
               the torch learner's model, which stays; of DeepSpeed's ranks the empty process
    update     one agent at a time: weights, gradients, optimiser, activations, logits

A plan is of one GPU: of all there is, or of several whose share is told by `OnGpu`. A server that
is spread over several GPUs has an equal part of its weights and of its cache on each.

The torch learner's checkpoints pass through the CPU's memory: read they are there twice, as bytes
and as tensors, and written once. DeepSpeed's ranks read and write one tensor at a time.

The update is that of a model that is read by tree. One that is read padded holds as many tokens, as
padding counts in its micro-batches, but its own attention in place of the tree's mask and copies.

On a CPU all is planned as float32, which it is at most; servers stay awake, and a sequence is read
whole, however long: the three presets for a CPU take 10.6, 16.0 and 18.5 GB by it, and prefect.yaml
states these, rounded up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mappa_core.models.shape import ModelShape
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learner_memory import LOGIT_ROWS, LearnerNeeds
from mappa_core.train.memory_items import COLLECTIVE_BYTES, CONTEXT_BYTES, GB, PHASES, Item, Phase

STEP_BYTES = 1.5 * GB
"""A server's activations of one step, apart from weights and cache."""
SERVER_BYTES = 1.15 * GB
"""Of a server's processes on a CPU apart from weights and cache, measured: interpreter, libraries,
a step's activations."""
LEARNER_BYTES = 0.8 * GB
"""The same of the run's own process, which trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The inference servers of a run, as far as memory goes."""

    agents: int
    """How many policies they serve."""
    merged: bool
    """Whether every agent has a server of its own, for merged or whole weights."""
    gpu_share: float
    """Of a GPU's memory, all of them together that share it."""
    width: int = 1
    """GPUs that each is spread over."""
    together: int | None = None
    """How many share a GPU at most; None: all of one replica."""
    sleep: bool
    """Whether they leave the GPU to the learner during an update."""
    longest: int
    """Tokens of the longest sequence; a cache must hold one."""

    @property
    def sharing(self) -> int:
        """Count those that share a GPU's memory where most do."""
        return self.together or (self.agents if self.merged else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnGpu:
    """What of a run one GPU holds."""

    servers: int
    """Servers, or their parts where they are wider than a GPU."""
    learns: bool = True
    """Whether the torch learner or one of DeepSpeed's ranks is there."""
    coaches: bool = False
    """Whether the servers of local coaches are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What goes where, and whether it fits."""

    items: tuple[Item, ...]
    gpu_bytes: float
    """Of the one GPU."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs that hold this each; none: the only one, or the CPU."""
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
        return max(map(self.host_peak, PHASES))

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
    shape: ModelShape,
    learner: LearnerConfig,
    servers: Servers,
    gpu_bytes: float,
    here: OnGpu | None = None,
) -> MemoryPlan:
    """Plan one GPU of a run.

    Args:
        shape: Of the model.
        learner: What trains.
        servers: What plays, on all GPUs.
        gpu_bytes: Of memory the GPU has.
        here: What of these is on it; None: all of one replica, and one rank.
    """
    here = here or OnGpu(servers=servers.sharing)
    count, loaded = here.servers, _loaded_bytes(shape, learner, servers)
    beside = STEP_BYTES + (COLLECTIVE_BYTES if servers.width > 1 else 0)
    cache = max(0.0, servers.gpu_share * gpu_bytes / servers.sharing - loaded - beside)
    rollout = tuple(_serving(count, loaded, cache, servers)) if count else ()
    held = Item("update", "servers, awake", sum(item.gpu_bytes for item in rollout))
    if servers.sleep:
        held = Item("update", f"{count} sleeping servers", count * CONTEXT_BYTES, count * loaded)
    needs = LearnerNeeds(shape, learner)
    trains = (*needs.staying(), *needs.update(), *needs.checkpoints()) if here.learns else ()
    # Keys and values are divided among GPUs by their heads, of which each has one at least.
    per_token = shape.cache_bytes_per_token / min(servers.width, shape.kv_heads)
    return MemoryPlan(
        items=(*rollout, *((held,) if count else ()), *trains),
        gpu_bytes=gpu_bytes,
        cache_bytes=cache,
        cached_tokens=int(cache / per_token),
        longest=servers.longest if count else 0,
    )


def _loaded_bytes(shape: ModelShape, learner: LearnerConfig, servers: Servers) -> float:
    """Count what a server's weights take of each of its GPUs, in bfloat16."""
    base = 2 * shape.parameters / servers.width
    if servers.merged or learner.weights == "full":
        return base
    # Adapters are divided in part only; here they count whole.
    return base + servers.agents * 2 * shape.adapter_parameters(learner.lora.rank)


def _serving(count: int, loaded: float, cache: float, servers: Servers) -> Iterator[Item]:
    part = "" if servers.width == 1 else f"1/{servers.width} of the "
    yield Item("rollout", f"{count} x {part}weights", count * loaded)
    yield Item("rollout", f"{count} x {part}key-value cache", count * cache)
    yield Item("rollout", f"{count} x one step", count * STEP_BYTES)
    if servers.width > 1:
        yield Item("rollout", "buffers of collectives", count * COLLECTIVE_BYTES)


def plan_on_cpu(
    shape: ModelShape,
    learner: LearnerConfig,
    servers: Servers,
    *,
    cache_bytes: float,
    machine_bytes: float,
    learns: bool = True,
) -> MemoryPlan:
    """Plan one run with all its agents, servers and the torch learner on a CPU.

    Args:
        shape: Of the model.
        learner: What trains.
        servers: What plays.
        cache_bytes: Of each server's key-value cache.
        machine_bytes: Of memory there are.
        learns: Whether the learner is there, too.
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
        ("the run's process", LEARNER_BYTES),
        *((("the learner's model", base),) if learns else ()),
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
            *(Item("update", what, host_bytes=size) for what, size in serving),
            *(Item("update", what, host_bytes=size) for what, size in updating if learns),
        ),
        gpu_bytes=0,
        machine_bytes=machine_bytes,
        cache_bytes=cache_bytes,
        cached_tokens=int(cache_bytes / (2 * shape.cache_bytes_per_token)),
        longest=servers.longest,
    )
