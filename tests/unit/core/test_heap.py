"""The heap of a run: one for all threads, in which what is freed makes room for what comes."""

import os
import platform
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from mappa_core.core.heap import TUNABLES

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps are glibc's")

THREADS = 8
SCRIPT = f"""
import ctypes, threading

{{first}}
barrier = threading.Barrier({THREADS})
def take():
    kept = bytearray(2**15)
    barrier.wait()
threads = [threading.Thread(target=take) for _ in range({THREADS})]
for each in threads: each.start()
for each in threads: each.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(first: str) -> int:
    """How many heaps a process has, after `first` and then threads that take memory at once."""
    command = [sys.executable, "-c", SCRIPT.format(first=first)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.count("<heap")


STARTED = """
import os, sys
from types import ModuleType

def rest():
    import flows
    with open("/proc/self/environ") as file:
        # glibc ends each tunable where it was read.
        begun = file.read().replace(chr(0), ":")
        print("{tunables}" in begun, "GLIBC_TUNABLES" in os.environ, *sys.argv[1:])

# What takes a second to import.
sys.modules["mappa_cli.main"] = main = ModuleType("mappa_cli.main")
main.command = rest
from mappa_cli.start import command
command()
"""
PASS = """
import ctypes
import torch

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

libc = ctypes.CDLL(None)
# As large blocks that have been freed leave it.
libc.mallopt(-3, 2**25)
libc.mallinfo2.restype = Heap
kept = []
for layer in range(200):
    wide = torch.empty(3 * 2**19, dtype=torch.uint8)
    kept.append(torch.empty(7 * 2**17, dtype=torch.uint8))
    kept += [torch.empty(1) for _ in range(1 + layer % 5)]
    wider = torch.empty(3 * 2**19, dtype=torch.uint8)
    del wide
    again = torch.empty(3 * 2**19, dtype=torch.uint8)
    del wider, again
print(libc.mallinfo2().i)
"""
"""A pass: of each layer one tensor is kept, with small objects, and three come and go."""


def printed(script: str, *arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in TUNABLES}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=environment | variables,
    ).stdout.strip()


def test_threads_of_a_run_share_one_heap() -> None:
    assert heaps("") > 1
    assert heaps("import flows") == 1


def test_a_command_starts_with_tunables_that_the_processes_it_starts_do_not_get() -> None:
    (installed,) = entry_points(group="console_scripts", name="mappa")
    assert installed.value == "mappa_cli.start:command"
    script = STARTED.format(tunables=TUNABLES["GLIBC_TUNABLES"])
    assert printed(script, "train", "name=a b") == "True False train name=a b"


def test_tunables_that_a_user_has_set_stay() -> None:
    script, own = STARTED.format(tunables="glibc.malloc.check=0"), "glibc.malloc.check=0"
    assert printed(script, GLIBC_TUNABLES=own) == "True True"


def test_a_tensor_that_is_freed_makes_room_for_the_next_of_its_size() -> None:
    # Of some hundred processes without them one has a heap in which the tensors fit by luck.
    assert any(int(printed(PASS, **TUNABLES)) < int(printed(PASS)) / 4 for _ in range(3))
