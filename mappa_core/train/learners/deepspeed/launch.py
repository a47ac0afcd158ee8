"""Starts ranks by torchrun, hands them tasks, and ends them with the process that started them.

    the learner's process ─pipe─▶ standard input of torchrun ─▶ that of every rank
    in a cluster: an actor ─pipe─▶ standard input of its rank

The kernel closes the pipe's writing end with the one process that has it, SIGKILL included.
torchrun alone would not do: told to end it ends its ranks, killed it leaves them.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Protocol

from mappa_core.cluster.inbox import POLL_SECONDS, hand_over, last_progress, read_reply
from mappa_core.core.errors import LearnerError
from mappa_core.train.config import DeepspeedConfig
from mappa_core.train.learners.deepspeed.exchange import RankReply, as_reply

WORKER = "mappa_core.train.learners.deepspeed.worker"

_log = logging.getLogger(__name__)


class Processes(Protocol):
    """Ranks that run."""

    @property
    def alive(self) -> bool:
        """Tell whether all of them do."""
        ...

    def hand_over(self, number: int, task: Path) -> None:
        """Let them see the task in the file `task` as their `number`-th, from 0.

        Raises:
            LearnerError: They are not there.
        """
        ...

    def reply(self, number: int, task: Path) -> bytes | None:
        """Read the reply to it; None where there is none yet."""
        ...

    def progress(self, task: Path) -> int:
        """A number that changes as often as a part of the task is done."""
        ...

    def close(self) -> None:
        """End them, at once and whatever they are at."""
        ...


class Launcher(Protocol):
    """Starts ranks, wherever it has places for them."""

    def __call__(
        self, slot: int, inbox: Path, log: Path, variables: Mapping[str, str]
    ) -> Processes:
        """Start the ranks that do the `slot`-th of all updates at once, from 0.

        Raises:
            LearnerError: They cannot be started.
        """
        ...


class Torchrun:
    """Ranks on this machine, started by torchrun; a `Launcher`."""

    def __init__(self, ranks: int, devices: Sequence[Sequence[str]]) -> None:
        """Start so many at once.

        `devices` are GPUs by their names in CUDA_VISIBLE_DEVICES, one for each rank in this order,
        for each slot; none: as they are visible here.
        """
        self._ranks, self._devices = ranks, devices

    def __call__(
        self, slot: int, inbox: Path, log: Path, variables: Mapping[str, str]
    ) -> "TorchrunProcesses":
        """Start the ranks of a slot."""
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(self._devices[slot])}
        return TorchrunProcesses(
            self._ranks, inbox, log, {**variables, **(seen if self._devices[slot] else {})}
        )


class TorchrunProcesses:
    """torchrun and its ranks; `Processes`."""

    def __init__(self, ranks: int, inbox: Path, log: Path, variables: Mapping[str, str]) -> None:
        self._inbox = inbox
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*torchrun, f"--nproc-per-node={ranks}", "-m", WORKER, str(inbox)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | variables,
            )

    @property
    def alive(self) -> bool:
        """Tell whether torchrun does, which ends when a rank does."""
        return self._process.poll() is None

    def hand_over(self, number: int, task: Path) -> None:
        """Link to it in their inbox."""
        hand_over(self._inbox, number, task)

    def reply(self, number: int, task: Path) -> bytes | None:  # noqa: ARG002
        """Read what lies beside it."""
        return read_reply(task)

    def progress(self, task: Path) -> int:
        """Look up when one of them did."""
        return last_progress(task)

    def close(self) -> None:
        """End them; torchrun does when it is told to end itself, and so does their pipe."""
        self._process.terminate()
        self._process.communicate()


class Ranks:
    """Processes that do one task after the other, until they are closed or one of them fails."""

    def __init__(
        self,
        config: DeepspeedConfig,
        directory: Path,
        log: Path,
        *,
        threads: int,
        launcher: Launcher | None = None,
        slot: int = 0,
    ) -> None:
        """Start them; what they print goes to `log`.

        Args:
            config: How many, and how long they may take to get on with a task.
            directory: Where their inbox may lie; all ranks see it.
            log: A file, which grows.
            threads: Of the CPU, for each.
            launcher: Starts them; None for torchrun, with the GPUs that are visible here.
            slot: Which of all updates at once they do.
        """
        self._config, self._log, self._tasks = config, log, 0
        self._inbox = Path(tempfile.mkdtemp(prefix=".ranks-", dir=directory))
        launch = launcher or Torchrun(config.ranks, ((),) * (slot + 1))
        variables = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self._processes = launch(slot, self._inbox, log, variables)
        _log.info("started %d ranks, whose log is %s", config.ranks, log)

    @property
    def alive(self) -> bool:
        """Tell whether they can do another task."""
        return self._processes.alive

    def reply_to(self, task: Path) -> RankReply:
        """Have the task in the file `task` done.

        Raises:
            LearnerError: They did no part of it for `timeout_seconds`, or ended without a reply.
        """
        number, self._tasks = self._tasks, self._tasks + 1
        self._processes.hand_over(number, task)
        progress, since = 0, time.monotonic()
        while True:
            # In this order: what a rank wrote before it ended counts.
            alive, reply = self.alive, self._processes.reply(number, task)
            if reply is not None:
                return as_reply(reply)
            if not alive:
                raise LearnerError(f"DeepSpeed's ranks ended without an answer: read {self._log}")
            if (done := self._processes.progress(task)) != progress:
                progress, since = done, time.monotonic()
            elif time.monotonic() > since + self._config.timeout_seconds:
                raise LearnerError(
                    f"the ranks did not get on for {self._config.timeout_seconds:.0f} s: read "
                    f"{self._log}, or raise learner.deepspeed.timeout_seconds"
                )
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """End them, at once and whatever they are at."""
        self._processes.close()
        shutil.rmtree(self._inbox, ignore_errors=True)


def end_with_parent(inbox: Path) -> None:
    """End this rank, from now on, when its standard input ends; its inbox is removed."""
    given = (sys.stdin.fileno(), inbox)
    Thread(target=_wait_for_end, args=given, name="parent", daemon=True).start()


def _wait_for_end(pipe: int, inbox: Path) -> None:
    while os.read(pipe, 1):
        pass
    shutil.rmtree(inbox, ignore_errors=True)
    # At once, and whatever the other threads are at: nothing more may be written.
    os.kill(os.getpid(), signal.SIGKILL)
