"""What an engine's servers of this machine come from, as its configuration wants it."""

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path

from mappa_core.models.device import resolve_device
from mappa_core.models.serving import fork_server
from mappa_core.models.serving.command import environment
from mappa_core.models.serving.server import ForkedServers
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.command import openings

_begun: ContextVar[list[ForkedServers] | None] = ContextVar("begun", default=None)


@contextmanager
def prestarted(
    config: EngineConfig, log_directory: Path
) -> Generator[Callable[[EngineSetup], None]]:
    """Import vLLM in the process that servers are forked from, for an engine opened inside.

    Gives what begins the servers of that engine, before it is opened. On a GPU it begins none:
    there they start in turns. Does nothing where the servers are running already.
    """
    if config.urls:
        yield lambda _: None
        return
    begun: list[ForkedServers] = []
    with fork_server.prestarted(_environment(config), _log(log_directory)) as started:

        def begin(setup: EngineSetup) -> None:
            device = resolve_device(setup.config.device)
            if device == "cpu":
                servers = ForkedServers(started)
                begun.append(servers)
                for opening in openings(setup, device):
                    servers.begin(*opening)

        token = _begun.set(begun)
        try:
            yield begin
        finally:
            _begun.reset(token)
            for servers in begun:
                servers.close()


def kept(log_directory: Path) -> AbstractContextManager[None]:
    """Keep it, vLLM imported, for engines as by default of commands that run inside the block."""
    return fork_server.kept(_environment(EngineConfig()), _log(log_directory))


def open_servers(setup: EngineSetup) -> ForkedServers:
    """What the engine's servers come from: those that were begun, or new ones."""
    begun = _begun.get()
    if begun:
        return begun.pop()
    return ForkedServers(open_fork_server(setup.config, setup.log_directory), setup.devices)


def open_fork_server(config: EngineConfig, log_directory: Path) -> fork_server.ForkServer:
    """What the engine's servers are forked from: the one that was `prestarted`, or a new one."""
    return fork_server.open_fork_server(_environment(config), _log(log_directory))


def _environment(config: EngineConfig) -> dict[str, str]:
    device = resolve_device(config.device)
    return environment(os.environ, device=device, weight_sync=config.weight_sync)


def _log(directory: Path) -> Path:
    return directory / "vllm.log"
