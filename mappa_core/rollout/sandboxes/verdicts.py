"""What became of a program, from its wait status, its limits and its control group."""

import os
import resource
import signal
import time
from dataclasses import dataclass

from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.rollout.sandboxes import programs
from mappa_core.rollout.sandboxes.launch import Tier
from mappa_core.rollout.sandboxes.programs import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the program ended."""

    stopped: ToolStatus | None
    """The limit it broke; None where it ended by itself."""
    exit_code: int | None
    """None where a signal killed it."""
    signal: int | None
    seconds: float


class NotStarted(Exception):
    """The walls could not be put up."""


def ending_of(program: Program, stopped: ToolStatus | None, status: int, tier: Tier) -> Ending:
    """Read a wait status, in which bubblewrap reports signals as 128 + n.

    Args:
        program: What ended.
        stopped: The limit it broke, if we ended it.
        status: Of `waitpid`.
        tier: What it ran under.
    """
    seconds = time.monotonic() - program.began
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - tier.signal_base
    killed = code < 0 or (tier.signal_base > 0 and number in signal.valid_signals())
    return Ending(
        stopped=stopped,
        exit_code=None if killed else code,
        signal=number if killed else None,
        seconds=seconds,
    )


def result_of(program: Program, ending: Ending, tier: str) -> ToolResult:
    """The result, its files aside, of a program whose whole tree has been reaped.

    Raises:
        NotStarted: The tier could not confine it, so it never ran.
    """
    for pipe in program.kept:
        while not programs.drain(program, pipe):
            pass
    stdout, stderr = program.kept[program.stdout], program.kept[program.stderr]
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    group = program.group
    peak = group.peak_memory_bytes() if group else None
    return ToolResult(
        code="",  # the caller has it
        status=_status(program, ending),
        exit_code=ending.exit_code,
        stdout=stdout.text(),
        stderr=stderr.text(),
        stdout_omitted_bytes=stdout.omitted_bytes,
        stderr_omitted_bytes=stderr.omitted_bytes,
        seconds=ending.seconds,
        cpu_seconds=group.cpu_seconds() if group else usage.ru_utime + usage.ru_stime,
        peak_memory_bytes=usage.ru_maxrss * 1024 if peak is None else peak,
        tier=tier,
    )


def _status(program: Program, ending: Ending) -> ToolStatus:
    if ending.stopped:
        return ending.stopped
    message = program.kept[program.stderr].text()
    if _out_of_memory(program, ending.exit_code, message):
        return ToolStatus.OUT_OF_MEMORY
    if not programs.has_started(program):
        raise NotStarted(message or "the program could not be started")
    if ending.signal == signal.SIGXCPU:
        return ToolStatus.TIMEOUT
    if ending.exit_code is None:
        return ToolStatus.KILLED
    return ToolStatus.NONZERO if ending.exit_code else ToolStatus.OK


def _out_of_memory(program: Program, exit_code: int | None, message: str) -> bool:
    if program.group:
        return program.group.out_of_memory()
    # Without a group the limit is on address space, and Python says so itself.
    *_, last_line = message.rstrip().split("\n")
    return exit_code == 1 and last_line.startswith("MemoryError")
