"""Starts the ranks by torchrun, and ends them with the process that asked for them.

    the learner's process ─pipe─▶ standard input of torchrun ─▶ that of every rank

The kernel closes the pipe's writing end with the one process that has it, SIGKILL included.
torchrun alone would not do: told to end it ends its ranks, killed it leaves them.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

from mappa_core.core.errors import LearnerError
from mappa_core.train.config import DeepspeedConfig

WORKER = "mappa_core.train.learners.deepspeed.worker"


def run_ranks(config: DeepspeedConfig, task: Path, log: Path, threads: int) -> None:
    """Start the ranks and wait until the last one has ended; what they print goes to `log`.

    Raises:
        LearnerError: They took longer than `config.timeout_seconds`.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = [f"--nproc-per-node={config.ranks}", "-m", WORKER, str(task)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [*torchrun, *ranks],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
        ) as process,
    ):
        try:
            process.wait(config.timeout_seconds)
        except subprocess.TimeoutExpired:
            raise LearnerError(
                f"the ranks took longer than {config.timeout_seconds:.0f} s: read {log}, or raise "
                "learner.deepspeed.timeout_seconds"
            ) from None
        finally:
            # torchrun ends its ranks when it is told to end itself.
            process.terminate()


def end_with_parent() -> None:
    """End this rank, from now on, when its standard input ends."""
    Thread(target=_wait_for_end, args=(sys.stdin.fileno(),), name="parent", daemon=True).start()


def _wait_for_end(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    # At once, and whatever the other threads are at: nothing more may be written.
    os.kill(os.getpid(), signal.SIGKILL)
