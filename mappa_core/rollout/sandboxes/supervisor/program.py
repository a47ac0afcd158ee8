"""One program: started in its walls, watched, and killed with all that it started.

    start ─▶ watch ─▶ it ended | the limit it broke | CallerGone ─▶ kill_tree ─▶ its wait status

`kill_tree` follows every end, so that no descendant is left. Where the supervisor itself is killed
first, the kernel does it: the program has a parent-death signal (`privileges`), a private folder's
mounts end with their process, and a container ends with its process 1 (`docker_container`).
"""

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from mappa_core.core.errors import MappaError
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.core.streams import BothEnds
from mappa_core.rollout.sandboxes.supervisor import privileges
from mappa_core.rollout.sandboxes.supervisor.cgroups import Group
from mappa_core.rollout.sandboxes.supervisor.run_folder import RunFolder
from mappa_core.rollout.sandboxes.supervisor.tier import Launch, Tier

OUTPUT_FACTOR = 16
"""A program that writes this many times what is kept of a stream is stopped."""
_LOOK_SECONDS, _REAP_SECONDS = 0.05, 0.001
_READ_BYTES = 2**16
_FAILED = b"!"
_NO_EXEC = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A running program."""

    pid: int
    ended: int
    """A descriptor that becomes readable when the program ends."""
    started: int
    """A pipe whose first byte says whether the walls stand."""
    output: dict[int, BothEnds]
    """What is kept of standard output and standard error, by their pipes."""
    group: Group | None
    began: float

    def drain(self, pipe: int) -> bool:
        """Read what is there; True at the end of the stream."""
        try:
            chunk = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        self.output[pipe].feed(chunk)
        return not chunk

    def has_started(self) -> bool:
        """Whether the walls stood before the program ran; ask once, after its end."""
        # Only the first byte counts: whatever comes later, a program may have written.
        try:
            return os.read(self.started, 1) not in (b"", _FAILED)
        except BlockingIOError:
            return False


def start(tier: Tier, folder: RunFolder, limits: Limits, group: Group | None, user: int) -> Program:
    """Fork, confine and execute the program of a filled folder.

    Raises:
        OSError: No process can be made. What fails inside it shows in `has_started`.
    """
    (stdout, out), (stderr, err), (started, announce) = os.pipe(), os.pipe(), os.pipe()
    procs = group.open_procs() if group else []
    processes = privileges.process_limit(folder, user, limits)
    parent, began = os.getpid(), time.monotonic()
    pid = os.fork()
    if not pid:
        try:
            _take_outputs(out, err)
            launch = Launch(
                folder=folder, limits=limits, user=user, in_cgroup=bool(group), started=announce
            )
            privileges.drop(launch, procs, processes, parent)
            tier.execute(launch)
        except (OSError, MappaError) as error:
            os.write(announce, _FAILED)
            os.write(2, str(error).encode())
        finally:
            os._exit(_NO_EXEC)
    for descriptor in (out, err, announce, *procs):
        os.close(descriptor)
    for descriptor in (stdout, stderr, started):
        os.set_blocking(descriptor, False)
    return Program(
        pid=pid,
        ended=os.pidfd_open(pid),
        started=started,
        output={pipe: BothEnds(limits.output_bytes) for pipe in (stdout, stderr)},
        group=group,
        began=began,
    )


def _take_outputs(out: int, err: int) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; programs expect them
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)


class CallerGone(Exception):
    """The caller gave up, so the run is pointless."""


def watch(program: Program, caller: int, limits: Limits) -> ToolStatus | None:
    """Wait for the program to end; the limit it broke, or None if it ended by itself.

    Raises:
        CallerGone: The descriptor `caller` became readable, or ended.
    """
    poller = select.poll()
    for descriptor in (caller, program.ended, *program.output):
        poller.register(descriptor, select.POLLIN)
    deadline = program.began + limits.wall_seconds
    while True:
        left_seconds = max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))
        ready = {descriptor for descriptor, _ in poller.poll(left_seconds * 1000)}
        if caller in ready:
            raise CallerGone
        for pipe in ready & program.output.keys():
            if program.drain(pipe):
                poller.unregister(pipe)
        if program.ended in ready:
            return None
        if broken := _broken_limit(program, limits, deadline):
            return broken


def kill_tree(program: Program) -> int:
    """Kill and reap every process of the run; the program's own wait status.

    As their adopted parent we see all of them; the loop catches what is forked while we kill.
    """
    status = 0
    while True:
        if program.group:
            program.group.kill()
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, ended_with = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == program.pid:
            status = ended_with
        if not pid:
            time.sleep(_REAP_SECONDS)


def _broken_limit(program: Program, limits: Limits, deadline: float) -> ToolStatus | None:
    if time.monotonic() >= deadline:
        return ToolStatus.TIMEOUT
    most = OUTPUT_FACTOR * limits.output_bytes
    if any(output.total_bytes > most for output in program.output.values()):
        return ToolStatus.OUTPUT_LIMIT
    if program.group and (broken := _broken_group_limit(program.group, limits)):
        return broken
    if program.group and program.group.ours:
        return None
    tree = [program.pid, *_descendants(program.pid)]
    large = sum(map(_resident_bytes, tree)) > limits.memory_bytes
    return ToolStatus.OUT_OF_MEMORY if large else None


def _broken_group_limit(group: Group, limits: Limits) -> ToolStatus | None:
    if group.cpu_seconds() > limits.cpu_seconds:
        return ToolStatus.TIMEOUT
    # The kernel may have killed one process only; a tree that has lost one is not worth finishing.
    return ToolStatus.OUT_OF_MEMORY if group.out_of_memory() else None


def _descendants(pid: int) -> list[int]:
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


def _resident_bytes(pid: int) -> int:
    """Memory that is the process's own, without what it shares with files and other processes."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
