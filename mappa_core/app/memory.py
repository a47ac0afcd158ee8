"""The memory plan of a run: its configuration, team and model put into `train.memory_plan`."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from mappa_core.app.cluster import placed_in
from mappa_core.app.coach_plan import coach_items
from mappa_core.app.config import TrainConfig
from mappa_core.app.placement import Placement, placed_on, sleep_where_shared
from mappa_core.cluster.bundles import Node
from mappa_core.core.errors import ConfigError, Unplanned
from mappa_core.core.settings import Settings
from mappa_core.models.shape import KNOWN, ModelShape, shape_of
from mappa_core.rollout.engines.base import serves_whole_models
from mappa_core.rollout.teams import load_team
from mappa_core.train.memory_plan import GB, MemoryPlan, OnGpu, Servers, plan, plan_on_cpu

GPU_BYTES = 80 * GB
"""Of the GPU that is planned for where there is none."""


def plan_memory(
    config: TrainConfig,
    settings: Settings,
    gpu_bytes: int | None,
    machine_bytes: int | None = None,
    gpus: int = 1,
) -> tuple[MemoryPlan, ...]:
    """Plan what a run keeps where: on GPUs, or without one on the CPU.

    Without one, GPUs of 80 GB are planned for where a run is made for GPUs: it names them, or its
    caches on a CPU are too small for its longest sequence, however much memory there is.

    Args:
        config: The run's.
        settings: Where models lie.
        gpu_bytes: Memory of each of this machine's GPUs; None where it has none.
        machine_bytes: Memory of its CPU; None: only GPUs are planned for.
        gpus: How many there are, or would be.

    Raises:
        ConfigError: The model's shape is not known here, the servers run elsewhere, or so many GPUs
            are too few.
    """
    if config.engine.urls:
        raise ConfigError(
            "servers of engine.urls have their own memory: set engine.urls=[] to plan the same run "
            "with servers on this machine"
        )
    agents = len(load_team(config.team, config.prompts, config.rollout).agents)
    shape = shape_for(config.model, settings.models)
    if machine_bytes is not None and _may_be_on_cpu(config, gpu=gpu_bytes is not None or gpus > 1):
        on_cpu = coached(planned_on_cpu(config, shape, agents, machine_bytes), config, settings)
        if on_cpu.cached_tokens >= on_cpu.longest or config.engine.device == "cpu":
            return (on_cpu,)
    placed = placed_on(config, agents, tuple(map(str, range(gpus))))
    return planned_where(config, settings, shape, placed, agents, gpu_bytes or GPU_BYTES)


def _may_be_on_cpu(config: TrainConfig, *, gpu: bool) -> bool:
    """Tell whether all of a run is on the CPU of a machine that has a `gpu`, or has none."""
    learner, devices = config.learner, {config.engine.device}
    if learner.deployment is None:
        if learner.backend != "torch":
            return False
        devices.add(learner.device)
    return devices == {"cpu"} if gpu else "cuda" not in devices


def plan_cluster(
    config: TrainConfig, settings: Settings, nodes: Sequence[Node], gpu_bytes: float
) -> tuple[MemoryPlan, ...]:
    """Plan what a run keeps on the GPUs of a cluster's nodes, each of `gpu_bytes`.

    Raises:
        ConfigError: The model's shape is not known here, or the nodes have no room for the run.
    """
    agents = len(load_team(config.team, config.prompts, config.rollout).agents)
    shape = shape_for(config.model, settings.models)
    placed = placed_in(config, agents, nodes)
    return planned_where(config, settings, shape, placed, agents, gpu_bytes)


def coached(
    alone: MemoryPlan,
    config: TrainConfig,
    settings: Settings,
    only: Collection[int] | None = None,
) -> MemoryPlan:
    """Add the servers of local coaches to a plan; `only` of these, by their places from 0."""
    coaches = coach_items(config.coach, settings.models, alone.gpu_bytes, only)
    return replace(alone, items=(*alone.items, *coaches))


def planned_where(
    config: TrainConfig,
    settings: Settings,
    shape: ModelShape,
    placed: Placement,
    agents: int,
    gpu_bytes: float,
) -> tuple[MemoryPlan, ...]:
    """Plan every GPU of a placed run; those that hold the same share one plan."""
    servers, count = _placed_servers(config, agents, placed), placed.servers_on
    alike: dict[tuple[OnGpu, tuple[int, ...]], list[str]] = {}
    for gpu in placed.gpus:
        coaches = placed.coaches_on(gpu, len(config.coach.served))
        here = OnGpu(servers=count.get(gpu, 0), learns=gpu in placed.learner, coaches=bool(coaches))
        alike.setdefault((here, coaches), []).append(gpu)
    plans: list[MemoryPlan] = []
    for (here, coaches), names in alike.items():
        alone = plan(shape, config.learner, servers, gpu_bytes, here)
        plans.append(replace(coached(alone, config, settings, coaches), gpus=tuple(names)))
    return tuple(plans)


def _placed_servers(config: TrainConfig, agents: int, placed: Placement) -> Servers:
    most = max(placed.servers_on.values(), default=1)
    return replace(_servers(config, agents, "cuda"), together=most, sleep=placed.sleeps)


def planned(config: TrainConfig, shape: ModelShape, agents: int, gpu_bytes: float) -> MemoryPlan:
    """Plan one GPU that has all servers of one replica and one of the learner's ranks."""
    return plan(shape, config.learner, _servers(config, agents, "cuda"), gpu_bytes)


def shared_cache_bytes(
    config: TrainConfig, settings: Settings, agents: int, placed: Placement, gpu_bytes: float
) -> int | None:
    """Plan the cache of each of the engine's servers where several servers share a GPU.

    None where each is alone, serves float32 or has a model without a plan: it measures for itself
    what its share leaves.

    Args:
        config: The run's.
        settings: Where models lie.
        agents: How many policies are served.
        placed: Where the servers are.
        gpu_bytes: Memory of a GPU.
    """
    servers = _placed_servers(config, agents, placed)
    coaches = any(each.gpu_bytes for each in coach_items(config.coach, settings.models, gpu_bytes))
    if config.engine.dtype == "float32" or (servers.sharing == 1 and not coaches):
        return None
    try:
        shape = shape_for(config.model, settings.models)
    except ConfigError:
        return None
    # What holds no cache at all is vLLM's to refuse, which knows the weights as they are.
    return int(plan(shape, config.learner, servers, gpu_bytes).cache_bytes) or None


def planned_on_cpu(
    config: TrainConfig, shape: ModelShape, agents: int, machine_bytes: float
) -> MemoryPlan:
    """Plan the memory of a run on a CPU, whose learner is torch's, or elsewhere."""
    return plan_on_cpu(
        shape,
        config.learner,
        _servers(config, agents, "cpu"),
        cache_bytes=config.engine.kv_cache_gib * 2**30,
        machine_bytes=machine_bytes,
        learns=config.learner.deployment is None,
    )


def _servers(config: TrainConfig, agents: int, device: str) -> Servers:
    engine, whole = config.engine, config.learner.weights == "full"
    return Servers(
        agents=agents,
        merged=serves_whole_models(engine, device, whole_weights=whole),
        gpu_share=engine.gpu_memory_utilization,
        width=engine.tensor_parallel if device == "cuda" else 1,
        sleep=device == "cuda" and sleep_where_shared(config),
        longest=engine.max_model_length,
    )


def shape_for(model: str, models: Path) -> ModelShape:
    """Find a model's shape by its directory, its name, or what was downloaded of it to `models`.

    Raises:
        Unplanned: None of these says.
    """
    if model in KNOWN:
        return KNOWN[model]
    for directory in (Path(model), models / model):
        file = directory / "config.json"
        if file.exists():
            try:
                return shape_of(json.loads(file.read_text()))
            except (KeyError, ValueError) as error:
                raise Unplanned(f"{file} does not say {error}: no plan for this model") from error
    raise Unplanned(
        f"the shape of {model} is not known here: give model= a directory with its config.json, or "
        f"one of {', '.join(KNOWN)}"
    )
