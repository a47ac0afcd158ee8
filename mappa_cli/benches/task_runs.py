"""What a task run of Prefect costs: of the process that runs it, and of the server."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
from prefect import flow, task

COUNT = 1_000
"""Task runs that are recorded; fewer than what Prefect's recorder takes at once."""
LOOK_SECONDS = 5.0
QUIET = 1.5
"""How many times as busy as before a server is that has written what it was sent."""
LEAST_SHARE = 0.02
"""Of a core: a server at rest counts as so busy, as its time is in hundredths of a second."""
MOST_LOOKS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRunCost:
    """Of each task run that does nothing, in seconds of one core."""

    caller: float
    """In the process that runs it."""
    server: float
    """In Prefect's server, above what it takes at rest."""


@task
async def _nothing() -> None:
    """Be recorded."""


@flow(name="task-runs", log_prints=False)
async def _recorded(count: int) -> None:
    for _ in range(count):
        await _nothing()


async def measured_task_runs(count: int = COUNT) -> TaskRunCost | None:
    """Run tasks that do nothing, until Prefect's server has written them all.

    None where the server is no child of this process, so that its time is not to be had, or does
    not come to rest again.
    """
    await _recorded(1)
    servers = _servers()
    if not servers:
        return None
    await asyncio.sleep(LOOK_SECONDS)
    at_rest = await _busy(servers)
    began, server, own = time.monotonic(), _seconds(servers), time.process_time()
    await _recorded(count)
    caller = time.process_time() - own
    for _ in range(MOST_LOOKS):
        if await _busy(servers) <= QUIET * max(at_rest, LEAST_SHARE):
            passed = time.monotonic() - began
            above = _seconds(servers) - server - at_rest * passed
            return TaskRunCost(caller=caller / count, server=above / count)
    return None


def _servers() -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for each in psutil.Process().children(recursive=True):
        # A child may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            if any("prefect" in word for word in each.cmdline()):
                found.append(each)
    return found


async def _busy(servers: list[psutil.Process]) -> float:
    """What of a core they take, for a moment."""
    before = _seconds(servers)
    await asyncio.sleep(LOOK_SECONDS)
    return (_seconds(servers) - before) / LOOK_SECONDS


def _seconds(servers: list[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in servers)
