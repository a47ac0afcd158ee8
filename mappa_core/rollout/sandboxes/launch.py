"""What every tier is told to start, and what the started process does to itself first."""

import math
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes import cgroups, linux
from mappa_core.rollout.sandboxes.rooms import PROGRAM, Interpreter, Room

Backend: TypeAlias = Literal["bubblewrap", "landlock", "unsafe-subprocess"]

_BUBBLEWRAP_AND_SUPERVISOR = 3
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT"), "1"
)
"""Numeric libraries would start a thread per core of the machine, in each of many runs at once."""
_FIRST_RUN_USER, _FIRST_RUN_USER_IN_CONTAINER, _USERS_IN_CONTAINER = 0x7000_0000, 61_000, 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One program about to start."""

    room: Room
    limits: Limits
    user: int
    grouped: bool
    """Whether a control group holds the memory of the whole tree."""
    started: int
    """Pipe end; a byte says that the program is confined and about to run."""

    def announce(self) -> None:
        """Say so, for a tier that confines itself and then becomes the program."""
        os.write(self.started, b".")

    def variables(self, scratch: str, path: str, python: Interpreter) -> dict[str, str]:
        """The program's whole environment: nothing of ours is in it."""
        threads = _ONE_THREAD if self.room.packages else dict[str, str]()
        return threads | {
            "PATH": f"{path}:/usr/bin:/bin",
            "HOME": scratch,
            "TMPDIR": scratch,
            "LANG": "C.UTF-8",
            **python.variables,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One way to confine a program."""

    name: Backend
    seccomp: bool
    private_room: bool | None
    """Whether it needs a private room; None takes one where there is one."""
    python_inside: Callable[[Room], Interpreter]
    """Where the program finds its interpreter."""
    execute: Callable[[Launch], NoReturn]
    """Confine this process and become the program; called in a fresh child.

    Raises:
        OSError: The machine refused.
    """
    signal_base: int
    """Exit codes above this stand for signals; 0 where the real status arrives."""


def arguments(python: str) -> list[str]:
    """The command line of the program: never its text."""
    return [python, "-E", "-s", "-B", PROGRAM]


def run_user() -> int:
    """Who runs the program: ourselves, or for root a user of this run alone.

    The numbers belong to nobody by convention; within a container's range, to nobody likely.
    """
    if os.geteuid() != 0 or not linux.may_change_user():
        return os.geteuid()
    pid = os.getpid()
    wanted = (_FIRST_RUN_USER + pid, _FIRST_RUN_USER_IN_CONTAINER + pid % _USERS_IN_CONTAINER)
    return next(filter(_exists_here, wanted), 0)


def _exists_here(user: int) -> bool:
    """Whether this user namespace has the number at all; rootless containers have few."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    ranges = [tuple(map(int, line.split())) for line in lines]
    return any(first <= user < first + count for first, _, count in ranges)


def process_limit(room: Room, user: int, limits: Limits) -> int:
    """RLIMIT_NPROC, which the kernel counts per user and user namespace."""
    # A user of its own, or a user namespace (the private room of an ordinary user), starts at 0.
    fresh = user != os.geteuid() or (room.private and user != 0)
    others = 0 if fresh else linux.tasks_of(user)
    return others + limits.processes + _BUBBLEWRAP_AND_SUPERVISOR


def become_the_run(launch: Launch, doors: list[int], processes: int, parent: int) -> None:
    """Enter the control group, take the limits, give up root, and never outlive the supervisor.

    Raises:
        OSError: The kernel refused.
    """
    cgroups.enter(doors)
    # Where memory runs out, the kernel is to take the program and not its supervisor.
    Path("/proc/self/oom_score_adj").write_text("1000")
    _limit(launch.limits, processes, per_process_memory=not launch.grouped)
    if launch.user == 0 and linux.may_change_user():  # a rootless container, no spare user
        linux.lose_root_at_exec()
    elif os.geteuid() != launch.user:
        os.setgroups([])
        os.setresgid(launch.user, launch.user, launch.user)
        os.setresuid(launch.user, launch.user, launch.user)
    linux.forbid_new_privileges()
    linux.die_with_parent(parent)


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
