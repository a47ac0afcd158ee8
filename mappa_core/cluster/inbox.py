"""How a rank is given tasks: files, in the order in which it does them.

INBOX/0, 1, 2, ...    links to the tasks
a task's file         beside it the reply, and a file that is as old as its last part is
"""

import time
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.02
"""Between two looks for a file."""


def hand_over(inbox: Path, number: int, task: Path) -> None:
    """Let the ranks see the task in the file `task` as their next."""
    (inbox / str(number)).symlink_to(task.resolve())


def next_task(inbox: Path, number: int) -> Path:
    """Wait for a task, however long it takes to come; returns its file."""
    link = inbox / str(number)
    while not link.is_symlink():
        time.sleep(POLL_SECONDS)
    return link.readlink()


def reply_file(task: Path) -> Path:
    """Name the file of the reply to the task in the file `task`."""
    return task.with_suffix(".answer.json")


def tell_progress(task: Path) -> None:
    """Note that a part of a task is done; where its folder is gone or full, nothing is noted."""
    with suppress(OSError):
        _progress_file(task).touch()


def last_progress(task: Path) -> int:
    """Look up when a part of a task was last done, in nanoseconds of this node; 0 for never."""
    try:
        return _progress_file(task).stat().st_mtime_ns
    except OSError:
        return 0


def _progress_file(task: Path) -> Path:
    return task.with_suffix(".progress")


def read_reply(task: Path) -> bytes | None:
    """Read that reply; None where there is none yet."""
    reply = reply_file(task)
    return reply.read_bytes() if reply.exists() else None
