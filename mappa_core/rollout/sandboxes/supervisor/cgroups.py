"""A control group for each run: memory, processes and CPU time of the whole tree.

    v1   /sys/fs/cgroup/{memory,pids,cpuacct}/<ours>/mappa-<supervisor pid>
    v2   /sys/fs/cgroup/<our parent's>/mappa-<supervisor pid>

Where neither may be written (an ordinary user without delegation, most containers) there is none,
and the tier says so.
"""

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes.supervisor import libc

_PREFIX = "mappa-"
_V1 = ("memory", "pids", "cpuacct")
_REMOVAL_TRIES = 200
_PROCESSES_OF_BUBBLEWRAP = 2
_SYSTEM = Path("/")
"""Root of the file system; tests have another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Where groups are made: one folder per v1 controller, or the same one for all of v2."""

    version: int
    parents: Mapping[str, Path]

    def group(self, pid: int) -> "Group":
        """The group of the supervisor `pid`; it need not exist."""
        name = f"{_PREFIX}{pid}"
        return Group(
            version=self.version,
            folders={controller: path / name for controller, path in self.parents.items()},
        )

    def sweep(self) -> None:
        """End and remove what dead supervisors left behind."""
        folders = next(iter(self.parents.values())).glob(f"{_PREFIX}[0-9]*")
        pids = [int(folder.name.removeprefix(_PREFIX)) for folder in folders]
        for pid in pids:
            if not Path(f"/proc/{pid}").exists():
                self.group(pid).remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One run's control group."""

    version: int
    folders: Mapping[str, Path]
    """By controller: memory, pids, cpuacct."""
    ours: bool = True
    """Whether we made it; a container's holds ourselves as well, and is only read."""
    cpu_seconds_before: float = 0.0
    """What it had used before the run."""

    def create(self, limits: Limits) -> None:
        """Make it, with its limits.

        Raises:
            OSError: It may not be made, or a controller is missing.
        """
        memory, pids = self.folders["memory"], self.folders["pids"]
        for folder in dict.fromkeys(self.folders.values()):
            folder.mkdir()
        (pids / "pids.max").write_text(str(limits.processes + _PROCESSES_OF_BUBBLEWRAP))
        if self.version == 1:
            (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
            _write_if_there(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
        else:
            (memory / "memory.max").write_text(str(limits.memory_bytes))
            _write_if_there(memory / "memory.swap.max", "0")
            (memory / "memory.oom.group").write_text("1")

    def open_procs(self) -> list[int]:
        """Open the `cgroup.procs` files, through which a process without rights can `enter`."""
        if not self.ours:
            return []
        folders = dict.fromkeys(self.folders.values())
        return [os.open(folder / "cgroup.procs", os.O_WRONLY) for folder in folders]

    def cpu_seconds(self) -> float:
        """CPU time of the whole tree so far."""
        folder = self.folders["cpuacct"]
        if self.version == 1:
            used = int((folder / "cpuacct.usage").read_text()) / 1e9
        else:
            used = _figure(folder / "cpu.stat", "usage_usec") / 1e6
        return used - self.cpu_seconds_before

    def peak_memory_bytes(self) -> int | None:
        """The most memory the tree held at once; None on kernels that do not tell."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        path = self.folders["memory"] / name
        return int(path.read_text()) if path.exists() else None

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the tree for its memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _figure(self.folders["memory"] / name, "oom_kill") > 0

    def kill(self) -> None:
        """Kill every process in it, now."""
        if not self.ours:
            return
        try:
            members = (self.folders["pids"] / "cgroup.procs").read_text().split()
        except OSError:
            return
        for pid in map(int, members):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Kill what is left and remove it; safe to call twice."""
        for folder in dict.fromkeys(self.folders.values()):
            for _ in range(_REMOVAL_TRIES):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # a killed process is still leaving
                    self.kill()
                    time.sleep(0.005)


def enter(procs: list[int]) -> None:
    """Move this process into the group whose `cgroup.procs` files are open as `procs`."""
    for descriptor in procs:
        os.write(descriptor, b"0")
        os.close(descriptor)


def enclosing_group(system: Path = _SYSTEM) -> Group | None:
    """The group that a container's maker put us in, or None where it does not show."""
    for candidate in _candidates(system):
        group = Group(version=candidate.version, folders=candidate.parents, ours=False)
        try:
            before = group.cpu_seconds()
            group.out_of_memory()
        except (OSError, ValueError):
            continue
        return replace(group, cpu_seconds_before=before)
    return None


def find_hierarchy(system: Path = _SYSTEM) -> Hierarchy | None:
    """Where this process can make groups that really limit, or None."""
    return next(filter(_works, _candidates(system)), None)


def _candidates(system: Path) -> list[Hierarchy]:
    mounts = system / "sys/fs/cgroup"
    lines = (system / "proc/self/cgroup").read_text().splitlines()
    own = {
        name: path
        for _, names, path in (line.split(":", 2) for line in lines)
        for name in names.split(",")
    }
    if set(_V1) <= own.keys():
        # Below our own group, so that our own limits go on holding; the root where a container
        # hides it.
        homes = {name: _existing(mounts / name, own[name]) for name in _V1}
        return [Hierarchy(version=1, parents=homes)]
    # A v2 group with processes cannot delegate to children, so ours go into its parent.
    here = _existing(mounts, own.get("", "/"))
    places = dict.fromkeys((here.parent if here != mounts else here, here))
    return [Hierarchy(version=2, parents=dict.fromkeys(_V1, place)) for place in places]


def _existing(mount: Path, own: str) -> Path:
    folder = mount / own.lstrip("/")
    return folder if folder.is_dir() else mount


def _works(hierarchy: Hierarchy) -> bool:
    group = hierarchy.group(os.getpid())
    try:
        group.create(Limits())
        group.cpu_seconds()
        return _can_enter(group)
    except (OSError, ValueError):
        return False
    finally:
        group.remove()


def _can_enter(group: Group) -> bool:
    procs = group.open_procs()
    try:
        return libc.works_in_child(lambda: enter(procs))
    finally:
        for descriptor in procs:
            os.close(descriptor)


def _figure(path: Path, name: str) -> int:
    lines = (line.split() for line in path.read_text().splitlines())
    return next((int(value) for key, value in lines if key == name), 0)


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)
