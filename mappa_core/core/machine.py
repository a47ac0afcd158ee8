"""What this machine has: memory of its GPUs and its own."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path


def gpu_bytes() -> int | None:
    """Read the memory of the smallest GPU, None where there is none."""
    answer = printed("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return None if answer is None else min(map(int, answer.split())) * 2**20


def machine_bytes(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Read the memory of this machine, or what of it this container may take."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in (cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            there = min(there, int(limit.read_text()))
    return there


def printed(*command: str) -> str | None:
    """Run a command and return what it prints; None where there is no such one, or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
