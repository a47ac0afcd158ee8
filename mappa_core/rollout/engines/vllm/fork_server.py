"""The process that an engine's servers are forked from, as its configuration wants it."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from mappa_core.models.device import resolve_device
from mappa_core.models.serving import fork_server
from mappa_core.models.serving.command import environment
from mappa_core.rollout.config import EngineConfig


def prestarted(config: EngineConfig, log_directory: Path) -> AbstractContextManager[None]:
    """Import vLLM in the process that servers are forked from, for an engine opened inside.

    Does nothing where the servers are running already.
    """
    if config.urls:
        return nullcontext()
    return fork_server.prestarted(_environment(config), _log(log_directory))


def kept(log_directory: Path) -> AbstractContextManager[None]:
    """Keep it, vLLM imported, for engines as by default of commands that run inside the block."""
    return fork_server.kept(_environment(EngineConfig()), _log(log_directory))


def open_fork_server(config: EngineConfig, log_directory: Path) -> fork_server.ForkServer:
    """What the engine's servers come from: the one that was `prestarted`, or one of its own."""
    return fork_server.open_fork_server(_environment(config), _log(log_directory))


def _environment(config: EngineConfig) -> dict[str, str]:
    device = resolve_device(config.device)
    return environment(os.environ, device=device, weight_sync=config.weight_sync)


def _log(directory: Path) -> Path:
    return directory / "vllm.log"
