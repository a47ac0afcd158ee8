"""What an actor does that owns a learner's rank: starts its process, and takes it along."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa_core.cluster.server_host import address_of_node, free_port


class RankHost:
    """One process, whose standard input ends with the process that this is in."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def rendezvous(self) -> tuple[str, int]:
        """Name where the ranks can meet, if this is the first one's: node and free port."""
        address = address_of_node()
        return address, free_port(address)

    def start(self, arguments: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        """Start this node's Python with variables of its own; what it prints goes to `log`."""
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with Path(log).open("ab") as output:
            self._process = subprocess.Popen(
                (sys.executable, *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | variables,
            )

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def pid(self) -> int:
        """Name the process of this actor."""
        return os.getpid()
