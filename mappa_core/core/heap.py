"""Sets the C library's heap, from which Python and torch take memory, where that is glibc."""

import ctypes

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""`mallopt`'s names for the size from which on memory is mapped alone, and the number of heaps."""
_MAPPED_ALONE_BYTES = 2**17


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
