"""Which of the earlier turns' files a program read, seen from outside by inotify(7).

The kernel tells the supervisor that owns the workspace; nothing runs inside the sandbox for it, so
a program can neither hide a read nor make one up (it can only really read). A file is followed by
its inode, not by its name: after a rename an earlier turn's bytes still count, and bytes that the
program wrote itself do not. Each file gives one event, so no flood of reads can drown another.
"""

import os
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from mappa_core.rollout.sandboxes.supervisor import libc

_ACCESS, _MODIFY, _CLOSE_WRITE, _CLOSE_NOWRITE = 0x1, 0x2, 0x8, 0x10
_READ = _ACCESS | _CLOSE_WRITE | _CLOSE_NOWRITE
"""Reading, or closing with nothing written before: a mapped file is never `read`. So a program
that opens a file to write and writes nothing counts as a reader: one that maps it looks the same.
"""
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWatch:
    """The files that were there before a program, under watch."""

    queue: int | None
    """None where there was nothing to read; a user may have few queues."""
    names: dict[int, str]
    """By watch."""
    stamps: dict[str, tuple[int, int]]
    """Inode and time of the last write, by name."""

    def read(self) -> set[str]:
        """The names whose old bytes were read before anything overwrote them; ask once."""
        if self.queue is None:
            return set()
        try:
            events = os.read(self.queue, _BUFFER_BYTES)
        except BlockingIOError:
            return set()
        finally:
            os.close(self.queue)
        return {self.names[watch] for watch, mask in _parsed(events) if mask & _READ}

    def written(self, workspace: Path) -> set[str]:
        """The names that were written anew, be it with the same bytes."""
        return {name for name, stamp in self.stamps.items() if _stamp(workspace / name) != stamp}


def watch(workspace: Path, names: Collection[str]) -> FileWatch:
    """Begin to watch the files `names` of a workspace, before its program starts.

    Raises:
        OSError: The machine has no more watches to give.
    """
    if not names:
        return FileWatch(queue=None, names={}, stamps={})
    queue = libc.inotify_queue()
    events = _READ | _MODIFY
    watched = {libc.inotify_watch_once(queue, workspace / name, events): name for name in names}
    stamps = {name: stamp for name in watched.values() if (stamp := _stamp(workspace / name))}
    return FileWatch(queue=queue, names=watched, stamps=stamps)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:  # gone, or its folder is a file now
        return None
    return status.st_ino, status.st_mtime_ns


def _parsed(events: bytes) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(events):
        watched, mask, _, length = _EVENT.unpack_from(events, position)
        position += _EVENT.size + length
        yield watched, mask
