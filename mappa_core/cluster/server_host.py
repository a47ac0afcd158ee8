"""What an actor does that owns a vLLM server: starts it on its node, and takes it along.

It imports nothing of Ray: the actor's class is made where it is asked for.
"""

import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path

from mappa_core.cluster.storage import Storage
from mappa_core.core.settings import Settings
from mappa_core.models.serving.command import environment
from mappa_core.models.serving.fork_server import SCRIPT, ForkServer

UNSERVED = ("optimizer.safetensors",)
"""Files of a checkpoint that no server reads."""


class ServerHost:
    """One server, which ends with the process that this is in."""

    def __init__(
        self, address: str, log: str, device: str, script: str = str(SCRIPT), threads: str = ""
    ) -> None:
        """Prepare it.

        Args:
            address: Of this node, where the server listens; empty: what Ray calls it.
            log: Where it writes, on this node.
            device: `cpu` or `cuda`.
            script: What servers are forked by.
            threads: The run's OMP_NUM_THREADS; empty: as many as this node has cores.
        """
        # Ray sets it to the logical CPUs of the actor, which are for its scheduler alone.
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads:
            os.environ["OMP_NUM_THREADS"] = threads
        self._address, self._log = address or address_of_node(), Path(log)
        given = environment(os.environ, device=device)
        forks_log = self._log.with_name(f"{self._log.stem}-forks.log")
        self._forks = ForkServer(Path(script), given, forks_log)
        self._liveness: socket.socket | None = None

    def start(self, arguments: Sequence[str]) -> str:
        """Start the server; returns where it will listen, which may take a while."""
        port = free_port(self._address)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        listening = ("--host", self._address, "--port", str(port))
        self._liveness = self._forks.fork((*arguments, *listening), self._log)
        return f"http://{self._address}:{port}"

    def ended(self) -> bool:
        """Tell whether the server has ended, or was never started."""
        if self._liveness is None:
            return True
        poll = select.poll()
        poll.register(self._liveness, select.POLLIN)
        return bool(poll.poll(0))

    def readable(self, checkpoint: str, storage: Storage | None) -> str:
        """Have the weights of a checkpoint on this node; returns where.

        Raises:
            ClusterError: They cannot be fetched.
        """
        if storage is None:
            return checkpoint
        return str(storage.on_node(Path(checkpoint), Settings().home, without=UNSERVED))

    def pid(self) -> int:
        """Name the process of this actor."""
        return os.getpid()


def address_of_node() -> str:
    """What Ray calls this node."""
    import ray

    return str(ray.util.get_node_ip_address())


def free_port(address: str) -> int:
    """A port of `address` that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
