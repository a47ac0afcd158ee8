"""Threads of a run share one heap, and have one each where nobody asks for that."""

import platform
import subprocess
import sys

import pytest

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps are glibc's")
def test_threads_of_a_run_share_one_heap() -> None:
    assert heaps("") > 1
    assert heaps("import flows") == 1
