"""Starts ranks by torchrun, hands them tasks, and ends them with the process that started them.

    the learner's process ─pipe─▶ standard input of torchrun ─▶ that of every rank

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
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from mappa_core.core.errors import LearnerError
from mappa_core.train.config import DeepspeedConfig
from mappa_core.train.learners.deepspeed.exchange import (
    POLL_SECONDS,
    RankReply,
    hand_over,
    read_reply,
)

WORKER = "mappa_core.train.learners.deepspeed.worker"

_log = logging.getLogger(__name__)


class Ranks:
    """Processes that do one task after the other, until they are closed or one of them fails."""

    def __init__(
        self,
        config: DeepspeedConfig,
        directory: Path,
        log: Path,
        *,
        threads: int,
        devices: Sequence[str] = (),
    ) -> None:
        """Start them; what they print goes to `log`.

        Args:
            config: How many, and how long a task may take.
            directory: Where their inbox may lie.
            log: A file, which grows.
            threads: Of the CPU, for each.
            devices: GPUs by their names in CUDA_VISIBLE_DEVICES, one for each rank in this order;
                none: as they are visible here.
        """
        self._config, self._log, self._tasks = config, log, 0
        self._inbox = Path(tempfile.mkdtemp(prefix=".ranks-", dir=directory))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        ranks = [f"--nproc-per-node={config.ranks}", "-m", WORKER, str(self._inbox)]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        }
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*torchrun, *ranks],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
            )
        _log.info("started %d ranks, whose log is %s", config.ranks, log)

    @property
    def alive(self) -> bool:
        """Tell whether they can do another task."""
        return self._process.poll() is None

    def reply_to(self, task: Path) -> RankReply:
        """Have the task in the file `task` done.

        Raises:
            LearnerError: It took longer than `timeout_seconds`, or the ranks ended without a reply.
        """
        ends = time.monotonic() + self._config.timeout_seconds
        hand_over(self._inbox, self._tasks, task)
        self._tasks += 1
        while True:
            # In this order: what a rank wrote before it ended counts.
            alive, reply = self.alive, read_reply(task)
            if reply is not None:
                return reply
            if not alive:
                raise LearnerError(f"DeepSpeed's ranks ended without an answer: read {self._log}")
            if time.monotonic() > ends:
                raise LearnerError(
                    f"the ranks took longer than {self._config.timeout_seconds:.0f} s: read "
                    f"{self._log}, or raise learner.deepspeed.timeout_seconds"
                )
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """End them, at once and whatever they are at."""
        # torchrun ends its ranks when it is told to end itself, and their pipe ends them, too.
        self._process.terminate()
        self._process.communicate()
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
