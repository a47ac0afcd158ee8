"""Measures the memory of an update, gives it back, and names a GPU that is full or fails."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from mappa_core.core import heap
from mappa_core.core.errors import LearnerError

_PROC = Path("/proc/self")


@dataclass(slots=True)
class Peak:
    """Filled in when the measured block has ended; bytes."""

    before: int = 0
    highest: int = 0

    def metrics(self) -> dict[str, float]:
        """Name `peak_memory_bytes` of the device, and how much of it the block added."""
        return {
            "peak_memory_bytes": float(self.highest),
            "peak_extra_memory_bytes": float(self.highest - self.before),
        }


@contextmanager
def measured(device: torch.device, *, at_rest: int | None = None) -> Generator[Peak]:
    """Measure the block's peak: a GPU's allocations, or this process's resident memory.

    A CPU's peak is held against `at_rest`, where the process keeps what earlier blocks have freed;
    None: what is resident now.
    """
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        peak.before = torch.cuda.memory_allocated(device)
    else:
        # Linux keeps one high-water mark per process; 5 sets it back to what is resident now.
        with suppress(OSError):
            (_PROC / "clear_refs").write_text("5")
        peak.before = resident() if at_rest is None else at_rest
    try:
        yield peak
    finally:
        cuda = device.type == "cuda"
        peak.highest = torch.cuda.max_memory_allocated(device) if cuda else _status_bytes("VmHWM")


def resident() -> int:
    """Measure what this process has in memory, bytes."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    lines = (_PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def release() -> None:
    """Give what has been freed back to the operating system, and to a GPU."""
    heap.give_back()
    release_gpu()


def release_gpu() -> None:
    """Give a GPU's freed memory, which torch keeps, to other processes: servers wake up next."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def gpu_failures_named() -> Generator[None]:
    """Turn what torch raises inside into one line.

    Raises:
        LearnerError: The GPU's memory is full, or the GPU failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise LearnerError(
            f"the GPU's memory is full ({str(error).splitlines()[0]}): go on by mappa train "
            "--resume with a smaller learner.micro_batch_tokens, or start a run with "
            "learner.gradient_checkpointing=true"
        ) from error
    except torch.AcceleratorError as error:
        raise LearnerError(
            f"the GPU failed ({str(error).splitlines()[0]}): mappa train --resume goes on "
            "from the last checkpoint"
        ) from error
