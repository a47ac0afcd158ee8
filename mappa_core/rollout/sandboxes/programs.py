"""A program from fork to the last of its descendants."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from mappa_core.core.errors import MappaError
from mappa_core.core.records.tools import Limits
from mappa_core.core.streams import BothEnds
from mappa_core.rollout.sandboxes import launch, linux
from mappa_core.rollout.sandboxes.cgroups import Group
from mappa_core.rollout.sandboxes.launch import Launch, Tier
from mappa_core.rollout.sandboxes.rooms import Room

_READ_BYTES = 2**16
_REAP_SECONDS = 0.001
_FAILED = b"!"
_NO_EXEC = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The running program, seen from here."""

    pid: int
    ended: int
    """A descriptor that becomes readable when the program ends."""
    started: int
    """A pipe whose first byte says whether the walls stand."""
    stdout: int
    stderr: int
    kept: dict[int, BothEnds]
    """What is kept of each output, by its pipe."""
    group: Group | None
    began: float


def start(tier: Tier, room: Room, limits: Limits, group: Group | None, user: int) -> Program:
    """Fork, confine and execute the program of a furnished room.

    Raises:
        OSError: No process can be made. What fails inside it shows in `has_started`.
    """
    (stdout, out), (stderr, err), (started, announce) = os.pipe(), os.pipe(), os.pipe()
    doors = group.doors() if group else []
    processes = launch.process_limit(room, user, limits)
    parent, began = os.getpid(), time.monotonic()
    pid = os.fork()
    if not pid:
        try:
            _take_outputs(out, err)
            confined = Launch(
                room=room, limits=limits, user=user, grouped=group is not None, started=announce
            )
            launch.become_the_run(confined, doors, processes, parent)
            tier.execute(confined)
        except (OSError, MappaError) as error:
            os.write(announce, _FAILED)
            os.write(2, str(error).encode())
        finally:
            os._exit(_NO_EXEC)
    for descriptor in (out, err, announce, *doors):
        os.close(descriptor)
    for descriptor in (stdout, stderr, started):
        os.set_blocking(descriptor, False)
    return Program(
        pid=pid,
        ended=os.pidfd_open(pid),
        started=started,
        stdout=stdout,
        stderr=stderr,
        kept={pipe: BothEnds(limits.output_bytes) for pipe in (stdout, stderr)},
        group=group,
        began=began,
    )


def _take_outputs(out: int, err: int) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; programs expect them
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)


def drain(program: Program, pipe: int) -> bool:
    """Read what is there; True at the end of the stream."""
    try:
        chunk = os.read(pipe, _READ_BYTES)
    except BlockingIOError:
        return True
    program.kept[pipe].feed(chunk)
    return not chunk


def end(program: Program) -> int:
    """Kill and reap every process of the run; the program's own wait status.

    As their adopted parent we see all of them; the loop catches what is forked while we kill.
    """
    status = 0
    while True:
        if program.group:
            program.group.kill()
        for pid in linux.descendants(os.getpid()):
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


def has_started(program: Program) -> bool:
    """Whether the walls stood before the program ran; ask once, after its end."""
    # Only the first byte counts: whatever comes later, a program may have written.
    try:
        return os.read(program.started, 1) not in (b"", _FAILED)
    except BlockingIOError:
        return False
