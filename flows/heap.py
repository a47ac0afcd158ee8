"""The collector's rounds kept short while a process does its work."""

import gc


def settle_heap() -> None:
    """Take what is loaded by now out of the garbage collector's rounds.

    The libraries of a run are hundreds of thousands of objects that live as long as the process;
    one walk over them stops every call in flight for 0.2 s. For the entry of a process that does
    one thing: rings among what is there now are never freed.
    """
    gc.collect()
    gc.freeze()
