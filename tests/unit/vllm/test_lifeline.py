"""A command under the lifeline never outlives the process that asked for it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mappa_core.adapters.vllm import lifeline

SCRIPT = str(Path(lifeline.__file__))

# Starts a child of its own, as vLLM does, and writes both process ids to a file.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""

# Holds a lifeline to the family and waits to be killed.
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


def family_command(pids: Path) -> list[str]:
    return [SCRIPT, sys.executable, "-c", FAMILY, str(pids)]


def read_pids(path: Path) -> list[int]:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, "the family did not start"
        time.sleep(0.02)
    return [int(pid) for pid in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, f"still running: {[p for p in pids if alive(p)]}"
        time.sleep(0.02)


def test_the_whole_family_goes_when_the_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, *family_command(tmp_path / "pids")]
    with subprocess.Popen(command) as parent:
        pids = read_pids(tmp_path / "pids")
        assert all(map(alive, pids))
        parent.send_signal(signal.SIGKILL)
    wait_until_gone(pids)


def test_the_whole_family_goes_when_standard_input_closes(tmp_path: Path) -> None:
    command = [sys.executable, *family_command(tmp_path / "pids")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        pids = read_pids(tmp_path / "pids")
        assert process.stdin is not None
        process.stdin.close()
        process.wait(15)
    wait_until_gone(pids)


def test_the_command_goes_when_the_lifeline_itself_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, *family_command(tmp_path / "pids")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        pids = read_pids(tmp_path / "pids")
        process.kill()
    wait_until_gone(pids[:1])
    os.kill(pids[1], signal.SIGKILL)


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_the_commands_own(status: int) -> None:
    command = [sys.executable, SCRIPT, sys.executable, "-c", f"raise SystemExit({status})"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(15) == status
