"""One run from start to end, in a process of its own.

    open room ─▶ start ─▶ watch ─▶ end the whole tree ─▶ collect files ─▶ report

Everything it makes ends with it: a private room by the kernel, the control group and a plain room
here, the program through its parent-death signal should this process be killed.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mappa_core.core.records.tools import Artifact, Limits, ToolResult, ToolStatus
from mappa_core.rollout.sandboxes import (
    files,
    footprints,
    launch,
    linux,
    programs,
    rooms,
    verdicts,
    wire,
)
from mappa_core.rollout.sandboxes.cgroups import Group, Hierarchy
from mappa_core.rollout.sandboxes.footprints import Footprints
from mappa_core.rollout.sandboxes.launch import Tier
from mappa_core.rollout.sandboxes.programs import Program
from mappa_core.rollout.sandboxes.rooms import Interpreter, Room
from mappa_core.rollout.sandboxes.verdicts import NotStarted
from mappa_core.rollout.sandboxes.wire import Failure, Request

OUTPUT_FACTOR = 16
"""A program that writes this many times what is kept of a stream is stopped."""
_TICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Facilities:
    """What this machine offers, found out once by the warden."""

    tier: Tier
    python: Interpreter
    hierarchy: Hierarchy | None
    private_rooms: bool
    packages: Mapping[str, Path]
    """Entries of site-packages that programs may import from."""
    enclosing: Group | None = None
    """The group of the container we are in, whose maker set its limits."""
    bounded_rooms: bool = False
    """Whether /tmp itself has a quota, so that plain rooms have one too."""

    @property
    def name(self) -> str:
        """The isolation that holds, e.g. `bubblewrap+cgroup+seccomp`."""
        parts = {
            self.tier.name: True,
            "cgroup": bool(self.hierarchy or self.enclosing),
            "tmpfs": self.bounded_rooms or (self.private_rooms and not self.tier.private_room),
            "seccomp": self.tier.seccomp,
        }
        return "+".join(part for part, held in parts.items() if held)


class _Abandoned(Exception):
    """The caller is gone."""


def serve(
    connection: socket.socket, facilities: Facilities, request: Request | None = None
) -> None:
    """Do one run, the one that `connection` asks for or `request`, and report on it."""
    try:
        asked = request or wire.receive_request(connection)
    except EOFError:
        return
    reply = report(asked, connection.fileno(), facilities)
    if reply is not None:
        with contextlib.suppress(OSError):  # the caller may have gone meanwhile
            connection.sendall(wire.encode_reply(reply))


def report(request: Request, caller: int, facilities: Facilities) -> ToolResult | Failure | None:
    """Do one run; None if its caller went away, which ends it.

    Args:
        request: What to run.
        caller: A descriptor that becomes readable, or ends, when nobody waits any more.
        facilities: What this machine offers.
    """
    linux.adopt_orphans()
    try:
        return _run(request, caller, facilities)
    except _Abandoned:
        return None
    except (NotStarted, OSError) as error:
        return Failure(reason=" ".join(str(error).split()))


def _run(request: Request, caller: int, facilities: Facilities) -> ToolResult:
    limits, tier = request.limits, facilities.tier
    with contextlib.ExitStack() as last_things:
        workspace = _workspace(request)
        group = _group(facilities, limits, last_things)
        code = request.code.encode("utf-8", "surrogatepass")
        room = rooms.open_room(
            facilities.python,
            facilities.packages,
            limits,
            len(code),
            private=facilities.private_rooms,
        )
        last_things.callback(room.close)
        before = files.copy_in(workspace, room.workspace) if workspace else {}
        prints = footprints.watch(room.workspace, before) if before else None
        user = launch.run_user()
        room.furnish(code, tier.python_inside(room), user)
        program = programs.start(tier, room, limits, group, user)
        try:
            stopped = _watch(program, caller, limits)
        finally:
            status = programs.end(program)
        ending = verdicts.ending_of(program, stopped, status, tier)
        result = verdicts.result_of(program, ending, facilities.name)
        old = _Before(files=before, footprints=prints)
        return _with_files(result, room, workspace, old, limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """A workspace as the program found it."""

    files: Mapping[str, Artifact]
    footprints: Footprints | None
    """None where there was nothing to read."""


def _with_files(
    result: ToolResult, room: Room, workspace: Path | None, before: _Before, limits: Limits
) -> ToolResult:
    prints = before.footprints
    # First of all, because we are about to read the files ourselves.
    read = prints.read() if prints else set[str]()
    touched = prints.touched(room.workspace) if prints else set[str]()
    files.make_readable(room.workspace)
    harvest = files.harvest(room.workspace, before.files, limits, leave_out=rooms.PROGRAM)
    if workspace:
        files.keep(room.workspace, workspace, harvest, before.files)
    written = tuple(
        file
        for file in harvest.files
        if file.name in touched or before.files.get(file.name) != file
    )
    return replace(
        result,
        written=written,
        read=tuple(before.files[name] for name in sorted(read)),
        removed=tuple(sorted(before.files.keys() - {file.name for file in harvest.files})),
        rejected=harvest.rejected,
    )


def _workspace(request: Request) -> Path | None:
    """The caller's folder, through a descriptor, because our mounts may cover its path."""
    if request.workspace is None:
        return None
    folder = os.open(request.workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return Path(f"/proc/self/fd/{folder}")


def _group(
    facilities: Facilities, limits: Limits, last_things: contextlib.ExitStack
) -> Group | None:
    if facilities.hierarchy is None:
        return facilities.enclosing
    group = facilities.hierarchy.group(os.getpid())
    last_things.callback(group.remove)
    group.create(limits)
    return group


def _watch(program: Program, caller: int, limits: Limits) -> ToolStatus | None:
    """Wait for the program to end; the limit it broke, or None if it ended by itself.

    Raises:
        _Abandoned: The caller closed its end.
    """
    poller = select.poll()
    for descriptor in (caller, program.ended, *program.kept):
        poller.register(descriptor, select.POLLIN)
    deadline = program.began + limits.wall_seconds
    while True:
        left_seconds = max(0.0, min(_TICK_SECONDS, deadline - time.monotonic()))
        ready = {descriptor for descriptor, _ in poller.poll(left_seconds * 1000)}
        if caller in ready:
            raise _Abandoned
        for pipe in ready & program.kept.keys():
            if programs.drain(program, pipe):
                poller.unregister(pipe)
        if program.ended in ready:
            return None
        if stopped := _broken_limit(program, limits, deadline):
            return stopped


def _broken_group_limit(group: Group, limits: Limits) -> ToolStatus | None:
    if group.cpu_seconds() > limits.cpu_seconds:
        return ToolStatus.TIMEOUT
    # The kernel may have killed one process only; a tree that has lost one is not worth finishing.
    return ToolStatus.OUT_OF_MEMORY if group.out_of_memory() else None


def _broken_limit(program: Program, limits: Limits, deadline: float) -> ToolStatus | None:
    if time.monotonic() >= deadline:
        return ToolStatus.TIMEOUT
    most = OUTPUT_FACTOR * limits.output_bytes
    if any(output.total_bytes > most for output in program.kept.values()):
        return ToolStatus.OUTPUT_LIMIT
    if program.group and (broken := _broken_group_limit(program.group, limits)):
        return broken
    if program.group and program.group.ours:
        return None
    tree = [program.pid, *linux.descendants(program.pid)]
    large = linux.resident_bytes(tree) > limits.memory_bytes
    return ToolStatus.OUT_OF_MEMORY if large else None
