"""What /proc says about processes and users."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_CAP_SETUID = 1 << 7


def may_change_user() -> bool:
    """Whether this process holds CAP_SETUID; root of a container that dropped it does not."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(line for line in lines if line.startswith("CapEff:")).split()[1]
    return bool(int(held, 16) & _CAP_SETUID)


def user_exists(user: int) -> bool:
    """Whether this user namespace has the number at all; rootless containers have few."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    ranges = [tuple(map(int, line.split())) for line in lines]
    return any(first <= user < first + count for first, _, count in ranges)


def tasks_of(user: int) -> int:
    """Processes and threads of a user on this machine, as RLIMIT_NPROC counts them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if process.stat().st_uid == user:
                count += len(list((process / "task").iterdir()))
    return count


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, parents before children."""
    found: list[int] = []
    frontier = [pid]
    while frontier:
        frontier = [child for parent in frontier for child in _children(parent)]
        found += frontier
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        lists = [(task / "children").read_text() for task in tasks]
    except OSError:  # it ended while we looked
        return []
    return [int(child) for text in lists for child in text.split()]


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory that is `pids`' own, pages shared with files and among processes left out."""
    return sum(map(_resident_bytes, pids))


def _resident_bytes(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
