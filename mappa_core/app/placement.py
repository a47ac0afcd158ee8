"""Places a run's servers and its learner on GPUs, by arithmetic over their names.

one GPU     all share it, and servers sleep while agents learn
several     the learner has the first ones, one for each of its ranks; servers have the rest
colocate    servers have all, and sleep while agents learn
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.core.text import counted
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import serves_whole_models
from mappa_core.train.config import LearnerConfig

Gpus = tuple[str, ...]
"""By their names in CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is where."""

    servers: tuple[Gpus, ...]
    """The GPUs of each server: all kinds of the first replica, then those of the second. Empty
    tuples on a CPU; none where they run already."""
    replicas: int
    learner: Gpus
    """Empty on a CPU, or where the learner is elsewhere."""
    coaches: tuple[Gpus, ...] | None = None
    """Those of the server of each local coach; None: they share the first GPU of all."""
    sleeps: bool = False
    """Whether the servers leave their GPUs to the learner while agents learn."""

    @property
    def gpus(self) -> Gpus:
        """List all that are used, the learner's first."""
        own = (*self.servers, *(self.coaches or ()))
        return tuple(dict.fromkeys((*self.learner, *chain.from_iterable(own))))

    def coaches_on(self, gpu: str, coaches: int) -> tuple[int, ...]:
        """Say which of so many local coaches a GPU has, by their places from 0."""
        if self.coaches is None:
            return tuple(range(coaches)) if gpu == self.gpus[0] else ()
        return tuple(number for number, gpus in enumerate(self.coaches) if gpu in gpus)

    @property
    def servers_on(self) -> Mapping[str, int]:
        """Count the servers on each GPU, parts of wider ones among them."""
        return Counter(chain.from_iterable(self.servers))


def placement(config: TrainConfig, agents: int) -> Placement:
    """Place a run on the GPUs that this process sees; raises as `place`.

    What a cluster has to place is not placed here.
    """
    if config.cluster.backend == "ray":
        return Placement(servers=(), replicas=1, learner=())
    from mappa_core.models.device import resolve_device, visible_gpus

    gpus = visible_gpus() if resolve_device(config.engine.device) == "cuda" else ()
    learner = config.learner
    return _placed(
        config, agents, gpus, () if learner.deployment else visible_learner_gpus(learner)
    )


def placed_on(config: TrainConfig, agents: int, gpus: Gpus) -> Placement:
    """Place a run on `gpus`, be they here or not; raises as `place`."""
    return _placed(config, agents, gpus, () if config.learner.deployment else gpus)


def _placed(config: TrainConfig, agents: int, engine_gpus: Gpus, learner_gpus: Gpus) -> Placement:
    engine, vllm = config.engine, config.engine.backend == "vllm"
    device = "cuda" if engine_gpus else "cpu"
    whole = serves_whole_models(engine, device, whole_weights=config.learner.weights == "full")
    placed = place(
        engine,
        config.learner,
        kinds=agents if whole and vllm else 1,
        # The transformers engine is in this process, and has its first GPU.
        engine_gpus=engine_gpus if vllm else engine_gpus[:1],
        learner_gpus=learner_gpus,
    )
    shared = not placed.servers_on.keys().isdisjoint(placed.learner)
    asked = sleep_where_shared(config) if shared else engine.colocate is True
    return replace(placed, sleeps=asked and vllm and bool(engine_gpus))


def sleep_where_shared(config: TrainConfig) -> bool:
    """Tell whether servers that share a GPU with the learner sleep while agents learn."""
    asked = config.engine.colocate
    return config.rollout.async_level == 0 if asked == "auto" else asked


def experimental(config: TrainConfig, placed: Placement) -> str | None:
    """Say what of a run no GPU has done yet; None where there is nothing of that."""
    engine = config.engine
    found = {
        f"cluster.backend={config.cluster.backend}": config.cluster.backend != "none",
        "engine.urls": bool(engine.urls),
        f"engine.weight_sync={engine.weight_sync}": engine.weight_sync != "reload",
        f"engine.tensor_parallel={engine.tensor_parallel}": engine.tensor_parallel > 1,
        f"{len(placed.gpus)} GPUs": len(placed.gpus) > 1,
        "servers that sleep while agents learn (engine.colocate)": placed.sleeps,
    }
    named = [what for what, there in found.items() if there]
    if not named:
        return None
    return (
        f"experimental: {', '.join(named)} (tested without one, and by arithmetic): compare the "
        "metric mismatch_kl with docs/learning.md after the first update"
    )


def learns_apart(learner: LearnerConfig, device: str) -> str | None:
    """Say that a learner has none of the GPUs of a cluster that computes on `device`; or None."""
    if device != "cuda" or learner.backend != "torch" or learner.deployment is not None:
        return None
    return (
        "learner.backend=torch learns in this process, which has none of the cluster's GPUs "
        "reserved: set learner.backend=deepspeed for ranks that have"
    )


def learner_gpus(config: TrainConfig) -> Gpus:
    """Give the GPUs of a learner that is alone on this machine; raises as `place`."""
    return _of_learner(config.learner, visible_learner_gpus(config.learner))


def visible_learner_gpus(learner: LearnerConfig) -> Gpus:
    """List the GPUs that a learner may use here; none on a CPU."""
    from mappa_core.models.device import resolve_device, visible_gpus

    return visible_gpus() if resolve_device(learner.device) == "cuda" else ()


def place(
    engine: EngineConfig,
    learner: LearnerConfig,
    *,
    kinds: int,
    engine_gpus: Sequence[str],
    learner_gpus: Sequence[str],
) -> Placement:
    """Place servers and learner.

    Args:
        engine: What plays.
        learner: What trains.
        kinds: Servers of one replica: one for all agents' adapters, or one for each agent.
        engine_gpus: That servers may use, of all that are visible; none on a CPU.
        learner_gpus: The same for the learner; none where its updates are computed elsewhere.

    Raises:
        ConfigError: They ask for GPUs that are not there, or for more than there are.
    """
    mine = _of_learner(learner, learner_gpus)
    if engine.urls:
        return Placement(servers=(), replicas=1, learner=mine)
    if not engine_gpus:
        _refuse_on_cpu(engine)
        replicas = 1 if engine.replicas == "auto" else engine.replicas
        return Placement(servers=((),) * (kinds * replicas), replicas=replicas, learner=mine)
    groups = _groups(_of_servers(engine, engine_gpus, mine), engine.tensor_parallel)
    replicas = engine.replicas
    if replicas == "auto":
        replicas = max(1, len(groups) // kinds)
    # Where there are more servers than places, they share in turn.
    servers = tuple(groups[number % len(groups)] for number in range(kinds * replicas))
    return Placement(servers=servers, replicas=replicas, learner=mine)


def _of_learner(learner: LearnerConfig, gpus: Sequence[str]) -> Gpus:
    if not gpus:
        return ()
    asked = _named("learner.devices", learner.devices, gpus)
    if learner.backend == "torch":
        if asked not in (None, gpus[:1]):
            raise ConfigError(
                "learner.backend=torch has the first GPU: leave learner.devices at auto, or say "
                "which is the first by CUDA_VISIBLE_DEVICES"
            )
        return tuple(gpus[:1])
    needed = learner.deepspeed.ranks * learner.updates_at_once
    chosen = tuple(gpus) if asked is None else asked
    if len(chosen) < needed:
        raise ConfigError(
            f"learner.updates_at_once={learner.updates_at_once} with learner.deepspeed.ranks="
            f"{learner.deepspeed.ranks} needs {counted(needed, 'GPU')}, and the learner has "
            f"{len(chosen)}: lower one of them"
        )
    return chosen[:needed]


def _of_servers(engine: EngineConfig, gpus: Sequence[str], learner: Gpus) -> Gpus:
    if engine.weight_sync != "reload":
        # Weights are sent to the first one.
        if engine.tensor_parallel > 1 or engine.replicas not in ("auto", 1):
            raise ConfigError(
                f"engine.weight_sync={engine.weight_sync} sends weights to one GPU: set it to "
                "reload for engine.tensor_parallel or engine.replicas above 1"
            )
        return tuple(gpus[:1])
    asked = _named("engine.devices", engine.devices, gpus)
    left = tuple(gpu for gpu in gpus if gpu not in learner)
    enough = len(left) >= engine.tensor_parallel and engine.colocate is not True
    chosen = asked if asked is not None else left if enough else tuple(gpus)
    if len(chosen) < engine.tensor_parallel:
        raise ConfigError(
            f"engine.tensor_parallel={engine.tensor_parallel} needs as many GPUs, and the servers "
            f"have {len(chosen)}: lower it, or raise engine.devices"
        )
    return chosen


def _groups(gpus: Gpus, width: int) -> tuple[Gpus, ...]:
    """Cut neighbours into groups of `width`; what is left over stays free."""
    return tuple(gpus[start : start + width] for start in range(0, len(gpus) - width + 1, width))


def _named(key: str, asked: Literal["auto"] | tuple[int, ...], gpus: Sequence[str]) -> Gpus | None:
    """Look up the GPUs of a key by their places; None for auto."""
    if asked == "auto":
        return None
    try:
        return tuple(gpus[place] for place in asked)
    except IndexError:
        raise ConfigError(
            f"{key}={list(asked)}: there are {counted(len(gpus), 'GPU')}, from 0 to {len(gpus) - 1}"
        ) from None


def _refuse_on_cpu(engine: EngineConfig) -> None:
    if engine.tensor_parallel > 1 or engine.devices != "auto":
        raise ConfigError(
            "engine.tensor_parallel and engine.devices are of GPUs, and the engine is on a CPU: "
            "leave them at 1 and auto, or set engine.device=cuda"
        )
