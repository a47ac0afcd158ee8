"""How a program is started, and the running program as its supervisor sees it."""

import os
import signal
import time
from dataclasses import dataclass

from mappa_core.core.errors import MappaError
from mappa_core.core.records.tools import Limits
from mappa_core.core.streams import BothEnds
from mappa_core.rollout.sandboxes.supervisor import privileges
from mappa_core.rollout.sandboxes.supervisor.cgroups import Group
from mappa_core.rollout.sandboxes.supervisor.run_folder import RunFolder
from mappa_core.rollout.sandboxes.supervisor.tier import Launch, Tier

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
