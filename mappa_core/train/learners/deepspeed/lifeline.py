"""Ranks on this machine end with the process that asked for them, however that dies.

    the learner's process ─pipe─▶ standard input of torchrun ─▶ that of every rank

The kernel closes the pipe's writing end with its only holder, SIGKILL included. torchrun alone
would not do: told to end it ends its ranks, killed it leaves them.
"""

import os
import signal
import sys
from threading import Thread

FLAG = "--lifeline"
"""Says that standard input is one."""


def hold() -> None:
    """From now on, end this process when its standard input ends."""
    Thread(target=_wait, args=(sys.stdin.fileno(),), name="lifeline", daemon=True).start()


def _wait(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    # At once, and whatever the other threads are at: nothing more may be written.
    os.kill(os.getpid(), signal.SIGKILL)
