"""One run from start to end, in a process of its own.

    make folder ─▶ start ─▶ watch ─▶ kill the whole tree ─▶ collect files ─▶ report

Everything it makes ends with it: a private folder by the kernel, the control group and a plain
folder here, the program through its parent-death signal should this process be killed.
"""

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mappa_core.core.records.tools import Limits, ToolResult, ToolStatus
from mappa_core.rollout.sandboxes.supervisor import (
    file_reads,
    files,
    libc,
    messages,
    privileges,
    program,
    run_folder,
)
from mappa_core.rollout.sandboxes.supervisor.cgroups import Group, Hierarchy
from mappa_core.rollout.sandboxes.supervisor.messages import Failure, Request
from mappa_core.rollout.sandboxes.supervisor.program import Program
from mappa_core.rollout.sandboxes.supervisor.run_folder import Interpreter, RunFolder
from mappa_core.rollout.sandboxes.supervisor.tier import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Facilities:
    """What this machine offers, found out once for many runs."""

    tier: Tier
    packages: Mapping[str, Path]
    """Entries of site-packages that programs may import from."""
    python: Interpreter = field(default_factory=run_folder.our_interpreter)
    hierarchy: Hierarchy | None = None
    private_folders: bool = False
    enclosing: Group | None = None
    """The group of the container we are in, whose maker set its limits."""
    bounded_tmp: bool = False
    """Whether /tmp itself has a quota, so that plain folders have one too."""

    @property
    def name(self) -> str:
        """The isolation that holds, e.g. `bubblewrap+cgroup+seccomp`."""
        parts = {
            self.tier.name: True,
            "cgroup": bool(self.hierarchy or self.enclosing),
            "tmpfs": self.bounded_tmp
            or (self.private_folders and not self.tier.needs_private_folder),
            "seccomp": self.tier.seccomp,
        }
        return "+".join(part for part, held in parts.items() if held)


class _NotStarted(Exception):
    """The walls could not be put up."""


def serve(connection: socket.socket, request: Request, facilities: Facilities) -> None:
    """Do one run and send the report, unless the caller has gone."""
    reply = report(connection.fileno(), request, facilities)
    if reply is not None:
        with contextlib.suppress(OSError):  # the caller may have gone meanwhile
            connection.sendall(messages.encode(reply))


def report(caller: int, request: Request, facilities: Facilities) -> ToolResult | Failure | None:
    """Do one run; None if its caller went away, which ends it.

    The descriptor `caller` becomes readable, or ends, when the caller goes away.
    """
    libc.adopt_orphans()
    try:
        return _run(caller, request, facilities)
    except program.CallerGone:
        return None
    except (_NotStarted, OSError) as error:
        return Failure(reason=" ".join(str(error).split()))


def _run(caller: int, request: Request, facilities: Facilities) -> ToolResult:
    limits, tier = request.limits, facilities.tier
    with contextlib.ExitStack() as cleanup:
        workspace = None
        if request.workspace is not None:
            workspace = run_folder.by_descriptor(Path(request.workspace), os.O_DIRECTORY)
        group = _cgroup(facilities, limits, cleanup)
        code = request.code.encode("utf-8", "surrogatepass")
        folder = _folder(facilities, limits, len(code))
        cleanup.callback(folder.remove)
        before = files.copy_in(workspace, folder.workspace) if workspace else {}
        watch = file_reads.watch(folder.workspace, before)
        user = privileges.run_user()
        folder.fill(code, tier.python_inside(folder), user)
        running = program.start(tier, folder, limits, group, user)
        try:
            broken = program.watch(running, caller, limits)
        finally:
            status = program.kill_tree(running)
        ended = _exit_code(status, tier.signal_base)
        result = _result(running, broken, ended, facilities.name)
        # First of all, because we are about to read the files ourselves.
        read, touched = watch.read(), watch.written(folder.workspace)
        files.make_readable(folder.workspace)
        left = files.collect(folder.workspace, before, limits, leave_out=run_folder.PROGRAM)
        if workspace:
            files.write_back(folder.workspace, workspace, left, before)
        return replace(
            result,
            written=left.changed(before, touched),
            read=tuple(before[name] for name in sorted(read)),
            removed=tuple(sorted(before.keys() - {file.name for file in left.files})),
            rejected=left.rejected,
        )


def _cgroup(facilities: Facilities, limits: Limits, cleanup: contextlib.ExitStack) -> Group | None:
    if facilities.hierarchy is None:
        return facilities.enclosing
    group = facilities.hierarchy.group(os.getpid())
    cleanup.callback(group.remove)
    group.create(limits)
    return group


def _folder(facilities: Facilities, limits: Limits, code_bytes: int) -> RunFolder:
    python, packages = facilities.python, facilities.packages
    if facilities.private_folders:
        return run_folder.make_private(python, packages, limits, code_bytes)
    return run_folder.make_plain(python, packages)


def _result(running: Program, broken: ToolStatus | None, ended: int, tier: str) -> ToolResult:
    """The result, its files aside, of a program whose whole tree has been reaped.

    Raises:
        _NotStarted: The tier could not confine it, so it never ran.
    """
    seconds = time.monotonic() - running.began
    for pipe in running.output:
        while not running.drain(pipe):
            pass
    stdout, stderr = running.output.values()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    group = running.group
    peak = group.peak_memory_bytes() if group else None
    return ToolResult(
        code="",  # the caller has it
        status=broken or _status(running, ended, stderr.text()),
        exit_code=None if ended < 0 else ended,
        stdout=stdout.text(),
        stderr=stderr.text(),
        stdout_omitted_bytes=stdout.omitted_bytes,
        stderr_omitted_bytes=stderr.omitted_bytes,
        seconds=seconds,
        cpu_seconds=group.cpu_seconds() if group else usage.ru_utime + usage.ru_stime,
        peak_memory_bytes=usage.ru_maxrss * 1024 if peak is None else peak,
        tier=tier,
    )


def _exit_code(wait_status: int, signal_base: int) -> int:
    """The exit code, or -n where signal n ended it, which bubblewrap reports as 128 + n."""
    code = os.waitstatus_to_exitcode(wait_status)
    number = code - signal_base
    return -number if signal_base and number in signal.valid_signals() else code


def _status(running: Program, ended: int, stderr: str) -> ToolStatus:
    if _out_of_memory(running.group, ended, stderr):
        return ToolStatus.OUT_OF_MEMORY
    if not running.has_started():
        raise _NotStarted(stderr or "the program could not be started")
    if ended == -signal.SIGXCPU:
        return ToolStatus.TIMEOUT
    if ended < 0:
        return ToolStatus.KILLED
    return ToolStatus.NONZERO if ended else ToolStatus.OK


def _out_of_memory(group: Group | None, ended: int, stderr: str) -> bool:
    """Whether memory ran out: by the kernel's word, or Python's where there is no control group."""
    if group:
        return group.out_of_memory()
    *_, last_line = stderr.rstrip().split("\n")
    return ended == 1 and last_line.startswith("MemoryError")
