"""What a wait status says about how a program ended."""

import os
import signal
from dataclasses import dataclass

from mappa_core.core.records.tools import ToolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a program ended."""

    code: int | None
    """None where a signal killed it."""
    signal: int | None


def read_wait_status(status: int, signal_base: int) -> Exit:
    """Read a wait status, in which bubblewrap reports signals as 128 + n.

    Args:
        status: Of `waitpid`.
        signal_base: Exit codes above this stand for signals; 0 where none do.
    """
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - signal_base
    killed = code < 0 or (signal_base > 0 and number in signal.valid_signals())
    return Exit(code=None if killed else code, signal=number if killed else None)


def status_of(ended: Exit) -> ToolStatus:
    """The status of a program that ended by itself, with memory to spare."""
    if ended.signal == signal.SIGXCPU:
        return ToolStatus.TIMEOUT
    if ended.code is None:
        return ToolStatus.KILLED
    return ToolStatus.NONZERO if ended.code else ToolStatus.OK


def says_memory_error(ended: Exit, stderr: str) -> bool:
    """Whether Python itself said that there was no memory left, where no control group can."""
    *_, last_line = stderr.rstrip().split("\n")
    return ended.code == 1 and last_line.startswith("MemoryError")
