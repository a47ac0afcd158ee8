"""Engines sample actions from the agents' weights; one table says which there are."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from mappa_core.core.errors import ConfigError
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup, serves_whole_models
from mappa_core.rollout.protocols import Engine

Begin: TypeAlias = Callable[[EngineSetup], None]
"""Begins what an engine is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One value of `engine.backend`."""

    module: str
    """In this package; its `open_engine(setup)` makes the engine."""
    takes_sent_weights: bool = False
    """Whether weights can reach it through a GPU's memory (`engine.weight_sync`)."""
    prestart: str | None = None
    """The module whose `prestarted(config, log_directory)` begins what takes longest, as below."""


ENGINES: Mapping[str, EngineKind] = MappingProxyType(
    {
        "vllm": EngineKind(
            module="vllm.engine", takes_sent_weights=True, prestart="vllm.fork_server"
        ),
        "transformers": EngineKind(module="transformers.engine"),
    }
)
"""Every engine by name."""


@contextmanager
def prestarted(config: EngineConfig, log_directory: Path) -> Generator[Begin]:
    """Begin what takes longest in starting the engine while other services are opened.

    Gives what begins the rest, once the setup is known; the engine that is opened inside takes it.
    """
    prestart = ENGINES[config.backend].prestart
    if prestart is None:
        yield lambda _: None
        return
    with import_module(f"{__name__}.{prestart}").prestarted(config, log_directory) as begin:
        yield begin


def check_engine(config: EngineConfig, *, whole_weights: bool) -> None:
    """Refuse servers that an engine does not have, and ways to send weights that do not exist.

    Raises:
        ConfigError: Several servers or GPUs for an engine that has one, something that servers of
            `engine.urls` are not told, no whole weights are served, or there is no GPU for them to
            go through.
    """
    from mappa_core.models.device import resolve_device

    device = resolve_device(config.device)
    if config.backend != "vllm" and (config.tensor_parallel, config.replicas) != (1, "auto"):
        raise ConfigError(
            f"engine.backend={config.backend} has one server on one device: leave "
            "engine.tensor_parallel at 1 and engine.replicas at auto, or set engine.backend=vllm"
        )
    if config.urls:
        _check_urls(config, whole_weights=whole_weights)
    if config.weight_sync == "reload":
        return
    receivers = [name for name, kind in ENGINES.items() if kind.takes_sent_weights]
    serves_whole = serves_whole_models(config, device, whole_weights=whole_weights)
    if config.backend not in receivers or not serves_whole:
        raise ConfigError(
            f"engine.weight_sync={config.weight_sync} sends whole weights to vLLM, and none are "
            f"served: set engine.backend={' or '.join(receivers)} and engine.serving=merged, or "
            "leave it at reload"
        )
    if device == "cpu":
        raise ConfigError(
            f"engine.weight_sync={config.weight_sync} goes through a GPU's memory: on a CPU leave "
            "it at reload"
        )


def _check_urls(config: EngineConfig, *, whole_weights: bool) -> None:
    """Refuse what servers that are running already are not told.

    Raises:
        ConfigError: It asks for them and for something else beside, or names one twice.
    """
    beside = {
        "engine.backend": config.backend != "vllm",
        "engine.serving=merged": config.serving == "merged",
        "engine.weight_sync": config.weight_sync != "reload",
        "engine.colocate": config.colocate is True,
        "engine.devices": config.devices != "auto",
        "engine.tensor_parallel": config.tensor_parallel != 1,
        "engine.replicas": config.replicas != "auto",
        "learner.weights=full": whole_weights,
    }
    named = [key for key, there in beside.items() if there]
    if named:
        raise ConfigError(
            "servers of engine.urls run already and are given adapters: leave "
            f"{' and '.join(named)} as by default"
        )
    if len(set(config.urls)) < len(config.urls):
        raise ConfigError(f"engine.urls names a server twice: {', '.join(config.urls)}")


async def start_engine(setup: EngineSetup, stack: AsyncExitStack) -> Engine:
    """The engine as configured, ready to serve; closed with `stack`.

    Raises:
        ConfigError: As `check_engine`.
        EngineError: It does not start.
    """
    if setup.servers is None:
        check_engine(setup.config, whole_weights=setup.whole_weights)
    # Imported when it is asked for: torch, transformers and vLLM take seconds.
    module = import_module(f"{__name__}.{ENGINES[setup.config.backend].module}")
    engine: Engine = module.open_engine(setup)
    stack.push_async_callback(engine.close)
    await engine.start()
    return engine
