"""Runs a command that must not outlive the process that asked for it.

    python lifeline.py COMMAND...     stdin: a pipe whose other end the parent holds

The kernel closes the parent's end however the parent dies, SIGKILL included; then, or when the
command ends by itself, its whole process group is ended. A script of its own, on the standard
library alone, so that it starts at once and takes 10 MB.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

GRACE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    # Covers the lifeline itself being killed; it has one thread, so this is the right parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_readable(*files: int, seconds: float | None = None) -> list[int]:
    return select.select(files, (), (), seconds)[0]


def run(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes; returns its exit status."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent
    )
    ended = os.pidfd_open(child.pid)
    if ended not in _wait_readable(sys.stdin.fileno(), ended):
        child.terminate()
        _wait_readable(ended, seconds=GRACE_SECONDS)
    # The command has ended or is told to; this is for what it started and left behind.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
