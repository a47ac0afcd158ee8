"""Starting the ranks: torchrun on this machine, DeepSpeed's launcher over several."""

import os
import subprocess
import sys
from pathlib import Path

from mappa_core.core.errors import LearnerError
from mappa_core.train.config import DeepspeedConfig
from mappa_core.train.learners.deepspeed import lifeline

WORKER = "mappa_core.train.learners.deepspeed.worker"


def command(config: DeepspeedConfig, job: Path) -> list[str]:
    """What starts all ranks; for several nodes `job` lies where each of them finds it."""
    if not config.nodes:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        ranks = [f"--nproc-per-node={config.ranks}", "-m", WORKER]
        return [*torchrun, *ranks, str(job), lifeline.FLAG]
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", str(hostfile(job))]
    return [*launcher, f"--num_gpus={config.ranks}", "--module", WORKER, str(job)]


def hostfile(job: Path) -> Path:
    """Where the nodes of a job are listed for DeepSpeed's launcher."""
    return job.with_suffix(".hosts")


def run(config: DeepspeedConfig, job: Path, log: Path, threads: int) -> None:
    """Start the ranks and wait until the last one has ended; what they print goes to `log`.

    Those on this machine do not outlive this process (`lifeline`). Those on other nodes may, and
    save nothing once somebody else does the same work (`jobs.wanted`).

    Raises:
        LearnerError: They took longer than `config.timeout_seconds`.
    """
    if config.nodes:
        lines = [f"{node} slots={config.ranks}\n" for node in config.nodes]
        hostfile(job).write_text("".join(lines))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    with (
        log.open("ab") as output,
        subprocess.Popen(
            command(config, job),
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
