"""Sets the C library's heap, from which Python and torch take memory, where that is glibc."""

import ctypes
import os
import sys

TUNABLES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"}
"""The environment in which a process starts whose small blocks join what is free beside them.

glibc otherwise sets freed small blocks aside as they are. torch's tensors begin at multiples of 64
bytes, so that each is cut out of a block up to 96 bytes larger; objects that live as long as the
tensors of a pass are then given what was cut off, and in the place of a tensor that is freed the
next one of its size does not fit: an update held half as much again (docs/decisions.md, "The
memory of an update on a CPU").
"""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""`mallopt`'s names for the size from which on memory is mapped alone, and the number of heaps."""
_MAPPED_ALONE_BYTES = 2**17


def start_with_tunables() -> None:
    """Start this process again with `TUNABLES`, unless some are set: glibc reads them only then.

    Another C library does not read them.
    """
    if "CS_GNU_LIBC_VERSION" in os.confstr_names and TUNABLES.keys().isdisjoint(os.environ):
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, os.environ | TUNABLES)  # noqa: S606


def hide_tunables() -> None:
    """Keep `TUNABLES` from the processes that this one starts, which have heaps of their own."""
    for name, value in TUNABLES.items():
        if os.environ.get(name) == value:
            del os.environ[name]


def share_heap() -> None:
    """Have threads that start from now on take memory from one heap.

    Each with a heap of its own, what one thread frees is nothing to the others: of two passes of an
    update, or of the threads that come and go in each iteration of a run, whose memory grew by
    what lay free between them (docs/decisions.md, "Two hundred iterations").
    """
    _set_option(_M_ARENA_MAX, 1)


def return_what_is_freed() -> None:
    """Give large tensors' memory back to the operating system when they are freed, from now on.

    glibc raises its threshold for that (128 KiB) to the largest block that was freed, up to 32 MiB:
    weights that are gathered and dropped, layer after layer, then stay with the process between
    activations. Measured on two ranks at stage 3 of a model of 32 million weights, float32: 778 MiB
    for an update that needs 446 (`tests/integration/train/deepspeed/test_ranks.py`).
    """
    _set_option(_M_MMAP_THRESHOLD, _MAPPED_ALONE_BYTES)


def give_back() -> None:
    """Give what is free now back to the operating system.

    An update's activations come in many sizes, so that freed pages stay with the process.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set_option(name: int, value: int) -> None:
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(name, value)
