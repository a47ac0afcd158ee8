"""What a fresh child takes on and gives up before it becomes the program: user, limits, rights."""

import contextlib
import math
import os
import resource
from pathlib import Path

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes.supervisor import cgroups, libc
from mappa_core.rollout.sandboxes.supervisor.run_folder import RunFolder
from mappa_core.rollout.sandboxes.supervisor.tier import Launch

_BUBBLEWRAP_AND_SUPERVISOR = 3
_CAP_SETUID = 1 << 7
_FIRST_RUN_USER, _FIRST_RUN_USER_IN_CONTAINER, _USERS_IN_CONTAINER = 0x7000_0000, 61_000, 4_000


def run_user() -> int:
    """The user of the program: ourselves, or for root a user of this run alone.

    By convention the numbers belong to no user; within a container's range, most likely.
    """
    if os.geteuid() != 0 or not _may_change_user():
        return os.geteuid()
    pid = os.getpid()
    wanted = (_FIRST_RUN_USER + pid, _FIRST_RUN_USER_IN_CONTAINER + pid % _USERS_IN_CONTAINER)
    return next(filter(_user_exists, wanted), 0)


def process_limit(folder: RunFolder, user: int, limits: Limits) -> int:
    """RLIMIT_NPROC, which the kernel counts per user and user namespace."""
    # A user of its own, or a user namespace (an ordinary user's private folder), starts at 0.
    fresh = user != os.geteuid() or (folder.private and user != 0)
    others = 0 if fresh else _tasks_of(user)
    return others + limits.processes + _BUBBLEWRAP_AND_SUPERVISOR


def drop(launch: Launch, procs: list[int], processes: int, parent: int) -> None:
    """Enter the group of `procs`, take the limits, give up root, and never outlive `parent`.

    Raises:
        OSError: The kernel refused.
    """
    cgroups.enter(procs)
    # Where memory runs out, the kernel is to take the program and not its supervisor.
    Path("/proc/self/oom_score_adj").write_text("1000")
    _limit(launch.limits, processes, per_process_memory=not launch.in_cgroup)
    if launch.user == 0 and _may_change_user():  # a rootless container, no spare user
        libc.lose_root_at_exec()
    elif os.geteuid() != launch.user:
        os.setgroups([])
        os.setresgid(launch.user, launch.user, launch.user)
        os.setresuid(launch.user, launch.user, launch.user)
    libc.forbid_new_privileges()
    libc.die_with_parent(parent)


def _limit(limits: Limits, processes: int, *, per_process_memory: bool) -> None:
    cpu = math.ceil(limits.cpu_seconds)
    bounds = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_NPROC: (processes, processes),
        resource.RLIMIT_NOFILE: (limits.open_files, limits.open_files),
        resource.RLIMIT_FSIZE: (limits.workspace_bytes, limits.workspace_bytes),
        resource.RLIMIT_CORE: (0, 0),
    }
    if per_process_memory:
        bounds[resource.RLIMIT_AS] = (limits.memory_bytes, limits.memory_bytes)
    for kind, (soft, hard) in bounds.items():
        _, allowed = resource.getrlimit(kind)
        if allowed != resource.RLIM_INFINITY:
            soft, hard = min(soft, allowed), min(hard, allowed)
        resource.setrlimit(kind, (soft, hard))


def _may_change_user() -> bool:
    """Whether this process holds CAP_SETUID; root of a container that dropped it does not."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(line for line in lines if line.startswith("CapEff:")).split()[1]
    return bool(int(held, 16) & _CAP_SETUID)


def _user_exists(user: int) -> bool:
    """Whether this user namespace has the number at all; rootless containers have few."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    ranges = [tuple(map(int, line.split())) for line in lines]
    return any(first <= user < first + count for first, _, count in ranges)


def _tasks_of(user: int) -> int:
    """Processes and threads of a user on this machine, as RLIMIT_NPROC counts them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if process.stat().st_uid == user:
                count += len(list((process / "task").iterdir()))
    return count
