"""Nothing is left behind, however a run or its owner ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Limits, ToolResult, ToolStatus
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.rollout.sandboxes.supervisor import cgroups
from tests.backends import DOCKER, EMBEDDED, open_backend

pytestmark = pytest.mark.anyio

OWNER = """
import asyncio, signal, sys
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.core.records.tools import Limits

DAEMON = '''
import os, time
if not os.fork():
    os.setsid()
    os.execvp("sleep", ["sleep", "MARK"])
time.sleep(99)
'''

async def main():
    sandbox = await choose_sandbox(sys.argv[1], 4)
    print("ready", flush=True)
    code = DAEMON.replace("MARK", sys.argv[2])
    await asyncio.gather(*(sandbox.run(code, None, Limits(wall_seconds=60)) for _ in range(3)))

# A shell starts what runs in its background deaf to Ctrl-C, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[*EMBEDDED, DOCKER])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    chosen = await open_backend(request.param, 4)
    yield chosen
    await chosen.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in 15 s"
        time.sleep(0.05)


def running(mark: str) -> int:
    listing = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True)
    return sum(line.startswith(f"sleep {mark}") for line in listing.stdout.splitlines())


def groups_and_folders() -> set[Path]:
    hierarchy = cgroups.find_hierarchy()
    parents = set(hierarchy.parents.values()) if hierarchy else set()
    groups = {path for parent in parents for path in parent.glob("mappa-[0-9]*")}
    return groups | set(Path("/tmp").glob("mappa-run-*"))


def made_by_dead_processes() -> set[Path]:
    numbers = {path: path.name.removeprefix("mappa-").removeprefix("run-").split("-")[0]
               for path in groups_and_folders()}  # fmt: skip
    return {path for path, number in numbers.items() if not Path(f"/proc/{number}").exists()}


def mounted() -> set[str]:
    return set(Path("/proc/self/mounts").read_text().splitlines())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
async def test_an_owner_that_is_killed_leaves_nothing(sandbox: Sandbox, how: signal.Signals):
    mark = f"{os.getpid()}.{time.time_ns()}"
    command = [sys.executable, "-c", OWNER, sandbox.tier.split("+")[0], mark]
    mounts, others = mounted(), made_by_dead_processes()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        until(lambda: running(mark) == 3)
        owner.send_signal(how)
        owner.wait(timeout=30)
    until(lambda: running(mark) == 0)
    until(lambda: made_by_dead_processes() <= others)
    until(lambda: mounted() <= mounts)


async def test_every_end_of_a_run_leaves_nothing(sandbox: Sandbox):
    limits = Limits(wall_seconds=2.0, output_bytes=1024, memory_bytes=64 << 20)
    codes = ("print(1)", "1/0", "while True: pass", "while True: print('x' * 999)",
             "x = bytearray(1 << 30)")  # fmt: skip
    others = made_by_dead_processes()
    results = await asyncio.gather(*(sandbox.run(code, None, limits) for code in codes))
    assert len({result.status for result in results}) == 5
    await sandbox.close()
    assert made_by_dead_processes() <= others


async def test_a_dead_fork_server_is_replaced(sandbox: Sandbox):
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    servers = [
        pid for pid in children if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    for pid in servers:
        os.kill(int(pid), signal.SIGKILL)
    await asyncio.sleep(0.1)
    results = await asyncio.gather(*(sandbox.run("print(1)", None, Limits()) for _ in range(3)))
    assert [result.status for result in results] == [ToolStatus.OK] * 3


async def test_more_runs_at_once_than_the_fork_server_has_room_for():
    sandbox = await choose_sandbox("unsafe-subprocess", 320)
    runs = [asyncio.create_task(sandbox.run("", None, Limits())) for _ in range(320)]
    await asyncio.sleep(0)  # each hands itself over at once, before the fork server can take any
    await sandbox.close()
    ends = await asyncio.gather(*runs, return_exceptions=True)
    assert not [end for end in ends if not isinstance(end, SandboxError | ToolResult)]


@pytest.mark.skipif(cgroups.find_hierarchy() is None, reason="no control groups to leave behind")
async def test_groups_of_dead_supervisors_are_swept_at_start():
    hierarchy = cgroups.find_hierarchy()
    assert hierarchy is not None
    with subprocess.Popen(["true"]) as gone:
        pass
    left = hierarchy.group(gone.pid)
    left.create(Limits())
    with subprocess.Popen(["sleep", "60"]) as stray:
        for folder in set(left.folders.values()):
            (folder / "cgroup.procs").write_text(str(stray.pid))
        await (await choose_sandbox("unsafe-subprocess", 1)).close()
        assert stray.wait(timeout=5) == -signal.SIGKILL
    assert not any(folder.exists() for folder in left.folders.values())
