"""Keeps the garbage collector's rounds short while a process does its work."""

import gc

YOUNG_OBJECTS = 20_000
"""New objects before a round over them; Python's 700 makes 70 rounds of a thousand calls."""


def freeze_garbage_collector() -> None:
    """Take what is loaded by now out of the garbage collector's rounds.

    The libraries of a run are hundreds of thousands of objects that live as long as the process;
    one walk over them stops every call in flight for 0.2 s. For the entry of a process that does
    one thing: rings among what is there now are never freed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
