"""What an actor does that owns a learner's rank: starts its process, and takes it along."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa_core.cluster.inbox import hand_over, last_progress, read_reply
from mappa_core.cluster.server_host import address_of_node, free_port


class RankHost:
    """One process, whose standard input ends with the process that this is in."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox = Path(tempfile.mkdtemp(prefix="mappa-rank-"))
        self._task: Path | None = None

    def rendezvous(self) -> tuple[str, int]:
        """Name where the ranks can meet, if this is the first one's: node and free port."""
        address = address_of_node()
        return address, free_port(address)

    def start(self, arguments: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        """Start this node's Python with variables of its own; what it prints goes to `log`.

        Its last argument is an inbox on this node, which the process removes as it ends.
        """
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with Path(log).open("ab") as output:
            self._process = subprocess.Popen(
                (sys.executable, *arguments, str(self._inbox)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | variables,
            )

    def hand_over(self, number: int, task: bytes) -> None:
        """Give the process its `number`-th task, from 0; the one before is done."""
        if self._task is not None:
            shutil.rmtree(self._task.parent, ignore_errors=True)
        self._task = self._inbox / f".job-{number}" / "job.json"
        self._task.parent.mkdir()
        self._task.write_bytes(task)
        hand_over(self._inbox, number, self._task)

    def reply(self) -> bytes | None:
        """Read the reply to the last task; None where there is none yet."""
        return None if self._task is None else read_reply(self._task)

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def progress(self) -> int:
        """Look up when a part of the last task was done, as `last_progress`."""
        return 0 if self._task is None else last_progress(self._task)

    def pid(self) -> int:
        """Name the process of this actor."""
        return os.getpid()
