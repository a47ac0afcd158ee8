"""vLLM as an engine of the table: its fork server may be started before everything else."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.fork_server import ForkServer, open_fork_server

if TYPE_CHECKING:
    from mappa_core.rollout.engines.vllm.engine import VllmEngine

_fork_server: ContextVar[ForkServer | None] = ContextVar("fork_server", default=None)


@contextmanager
def prestarted(config: EngineConfig, log_directory: Path) -> Generator[None]:
    """Import vLLM in the process that servers are forked from, for an engine opened inside."""
    fork_server = open_fork_server(config, log_directory)
    fork_server.start()
    token = _fork_server.set(fork_server)
    try:
        yield
    finally:
        _fork_server.reset(token)
        fork_server.close()


def open_engine(setup: EngineSetup) -> "VllmEngine":
    """The engine, not started yet."""
    # Imports transformers, which would hold up the fork server above.
    from mappa_core.rollout.engines.vllm.engine import VllmEngine

    return VllmEngine(
        setup, _fork_server.get() or open_fork_server(setup.config, setup.log_directory)
    )
