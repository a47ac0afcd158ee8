"""Refuses, before anything is written, a run that memory or disk of this machine do not hold.

    memory   the plan of `mappa doctor --plan`, on this machine's GPU and CPU, or CPU alone
    disk     checkpoints, registered files and served weights, by the configuration

What is refused can be started all the same by name: `mappa train --despite memory`. Of a run whose
updates are computed elsewhere the rest is planned. Where there is no plan, the start says why. That
of several GPUs is arithmetic that none has confirmed.
"""

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mappa_core.app.cluster import device_in, gpus_of
from mappa_core.app.config import TrainConfig
from mappa_core.app.memory import (
    coached,
    plan_cluster,
    planned_on_cpu,
    planned_where,
    shape_for,
    shared_cache_bytes,
)
from mappa_core.app.placement import Placement, placement
from mappa_core.core.errors import ConfigError, DiskFull, Unplanned
from mappa_core.core.machine import gpu_bytes, machine_bytes
from mappa_core.core.settings import Settings
from mappa_core.models.shape import ModelShape
from mappa_core.rollout.engines.base import serves_whole_models
from mappa_core.train.memory_items import PHASES
from mappa_core.train.memory_plan import GB, MemoryPlan

Despite = Literal["memory", "disk"]
"""A refusal that a person may overrule."""

SPARE_BYTES = 2 * 2**30
"""Free space asked for before any run starts: a converted model, rows, logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeed:
    """Bytes that a run writes, at most."""

    checkpoints: float
    """Weights and moments in float32; at most so many as are kept."""
    registered: float
    """Copies in MLflow."""
    served: float
    """Merged weights, while they are loaded."""

    @property
    def total(self) -> float:
        """Sum them, with what any run takes beside."""
        return self.checkpoints + self.registered + self.served + SPARE_BYTES


def check_fits(
    config: TrainConfig,
    settings: Settings,
    agents: int,
    despite: Collection[Despite] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Refuse a run that does not fit this machine, but for what `despite` names.

    `tell` is told why there is no memory plan, where there is none.

    Raises:
        ConfigError: Its memory plan does not fit.
        DiskFull: Its files do not.
    """
    shape, plans = None, ()
    try:
        shape = shape_for(config.model, settings.models)
        if "memory" not in despite:
            plans = memory_plan(config, settings, shape, agents)
    except Unplanned as reason:
        tell(f"no memory plan: {reason}")
    check_memory(plans)
    # A cluster's nodes have memory of their own.
    alone = config.cluster.backend == "none"
    if alone and (shortage := host_shortage(plans, machine_bytes())):
        raise ConfigError(shortage)
    if "disk" not in despite:
        need = SPARE_BYTES
        if shape is not None:
            need = disk_need(config, shape, agents, on_gpu=on_gpu(plans)).total
        check_space(settings.home, need)


def on_gpu(plans: Sequence[MemoryPlan]) -> bool:
    """Tell whether plans are of GPUs."""
    return any(plan.machine_bytes is None for plan in plans)


def memory_plan(
    config: TrainConfig, settings: Settings, shape: ModelShape, agents: int
) -> tuple[MemoryPlan, ...]:
    """Plan a run's memory on this machine or its cluster's GPUs.

    Of a run whose updates are computed elsewhere, all but the learner.

    Raises:
        Unplanned: It is one that no plan is made for.
        ConfigError: Its cluster's nodes have no room for it.
        ClusterError: There is no such cluster.
    """
    if config.cluster.backend == "ray":
        nodes, smallest = gpus_of(config.cluster)
        device = device_in(config.engine.device, gpus=any(node.get("GPU") for node in nodes))
        if device == "cpu" or smallest is None:
            raise Unplanned("its cluster's nodes have no GPU that says its memory")
        return plan_cluster(config, settings, nodes, smallest)
    return _planned_here(config, settings, shape, agents)


def _planned_here(
    config: TrainConfig, settings: Settings, shape: ModelShape, agents: int
) -> tuple[MemoryPlan, ...]:
    from mappa_core.models.device import resolve_device

    learner, engine = config.learner, config.engine
    if engine.urls:
        raise Unplanned("the servers of engine.urls have their own memory")
    devices = {resolve_device(engine.device)}
    if learner.deployment is None:
        devices.add(resolve_device(learner.device))
    if len(devices) > 1:
        raise Unplanned("of engine and learner one is on the CPU, one on the GPU")
    if devices == {"cuda"}:
        found, placed = gpu_bytes(), placement(config, agents)
        if found is None:
            raise Unplanned("nvidia-smi does not say the GPU's memory")
        return planned_where(config, settings, shape, placed, agents, found)
    _check_planned_on_cpu(config)
    alone = planned_on_cpu(config, shape, agents, machine_bytes())
    return (coached(alone, config, settings),)


def _check_planned_on_cpu(config: TrainConfig) -> None:
    if (engine := config.engine.backend) != "vllm":
        raise Unplanned(f"engine.backend={engine} has none on a CPU")
    learner = config.learner
    if learner.deployment is None and learner.backend != "torch":
        raise Unplanned(f"learner.backend={learner.backend} has none on a CPU")


def server_cache_bytes(
    config: TrainConfig, settings: Settings, agents: int, placed: Placement
) -> int | None:
    """Plan the cache of the engine's servers on this machine's GPUs, as `shared_cache_bytes`."""
    if config.cluster.backend == "ray":
        return None
    from mappa_core.models.device import resolve_device

    found = gpu_bytes() if resolve_device(config.engine.device) == "cuda" else None
    if found is None:
        return None
    return shared_cache_bytes(config, settings, agents, placed, found)


def check_memory(plans: Sequence[MemoryPlan]) -> None:
    """Refuse plans of which one does not fit.

    Raises:
        ConfigError: It needs more than there is; the message names both.
    """
    short = next((plan for plan in plans if not plan.fits), None)
    if short is None:
        return
    kind = "GPU" if short.machine_bytes is None else "CPU"
    several = sum(len(plan.gpus) for plan in plans) > 1
    where = f"{kind} {', '.join(short.gpus)}" if several else f"the {kind}"
    over = short.needed_bytes > short.limit_bytes
    needs = (
        f"{short.needed_bytes / GB:.1f} GB of {where}'s {short.limit_bytes / GB:.1f}"
        if over
        else f"a cache for {short.longest:,} tokens and has one for {short.cached_tokens:,}"
    )
    spread = _spreading(short) if several else ""
    raise ConfigError(
        f"by the memory plan this run needs {needs}: see `mappa doctor --plan`, lower "
        f"learner.micro_batch_tokens or engine.max_model_length{spread}, or start it all the same "
        "with --despite memory"
    )


def host_shortage(plans: Sequence[MemoryPlan], there: float) -> str:
    """Say what the CPU's memory lacks for a run on GPUs, in one line; empty where it holds all."""
    needed = max(
        sum(plan.host_peak(phase) * max(1, len(plan.gpus)) for plan in plans) for phase in PHASES
    )
    if needed <= there:
        return ""
    return (
        f"by the memory plan this run needs {needed / GB:.1f} GB of the CPU's {there / GB:.1f} "
        "beside its GPU: see `mappa doctor --plan`, set engine.colocate=false or leave off "
        "learner.deepspeed.offload where the GPU has room, or start it all the same with "
        "--despite memory"
    )


def _spreading(short: MemoryPlan) -> str:
    """Name the keys that spread over more GPUs what one of several does not hold."""
    if short.cached_tokens < short.longest or short.peak("rollout") > short.gpu_bytes:
        return ", raise engine.tensor_parallel"
    return ", raise learner.deepspeed.ranks or learner.deepspeed.stage"


def disk_need(
    config: TrainConfig, shape: ModelShape, agents: int, *, on_gpu: bool = False
) -> DiskNeed:
    """Estimate what a run writes: each checkpoint has weights and two moments in float32."""
    learner, whole = config.learner, config.learner.weights == "full"
    trained = shape.parameters if whole else shape.adapter_parameters(learner.lora.rank)
    updates = config.rollout.iterations - config.start.step
    # The best one stays as well, and one is written before another is removed.
    stay = updates if learner.keep_checkpoints is None else learner.keep_checkpoints + 2
    wide = 2 if config.tracking.registered_dtype == "bfloat16" else 4
    merged = serves_whole_models(config.engine, "cuda" if on_gpu else "cpu", whole_weights=whole)
    # At most: a CPU may have float32.
    loaded = 2 if on_gpu and config.engine.dtype != "float32" else 4
    return DiskNeed(
        checkpoints=agents * min(updates, stay) * 12 * trained,
        registered=agents * (updates if config.registers_every else 2) * wide * trained,
        served=loaded * shape.parameters * agents if merged else 0,
    )


def free_bytes(directory: Path) -> int:
    """Measure the free disk where `directory` lies or will lie."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(existing).free


def check_space(directory: Path, spare_bytes: float = SPARE_BYTES) -> None:
    """Refuse to start on a disk that will fill up half way.

    Raises:
        DiskFull: Less than `spare_bytes` are free where `directory` lies or will lie.
    """
    if (free := free_bytes(directory)) < spare_bytes:
        raise DiskFull(
            f"the disk of {directory} has {free / 2**30:.1f} GiB free and this needs "
            f"{spare_bytes / 2**30:.0f}: make room, point MAPPA_HOME at a larger disk, or keep "
            "less (learner.keep_checkpoints, tracking.versions); mappa train --despite disk starts "
            "a run all the same"
        )
