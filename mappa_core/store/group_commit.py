"""Many writers, one commit: what piles up while the disk is busy becomes durable together.

    thread 1 ─ write ─▶ commits 1              ─▶ returns
    thread 2 ─ write ─▶ waits    ─▶ commits 2, 3, 4 ─▶ returns
    thread 3 ─ write ─▶ waits               ┘  ─▶ returns
    thread 4 ─ write ─▶ waits               ┘  ─▶ returns

There is no queue to fill and no thread to lose: a writer waits until its own rows are durable,
which is the back-pressure, and the first writer after that commits for all that wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from mappa_core.core.errors import StoreError, StoreUnreachable
from mappa_core.store.insert import Rows, merged


@dataclass(slots=True)
class _Write:
    rows: Rows
    done: bool = False
    error: BaseException | None = None


class GroupCommit:
    """Commits rows of several threads in one transaction."""

    def __init__(self, commit: Callable[[Rows], None]) -> None:
        """Let `commit` make rows durable, all or none."""
        self._commit = commit
        self._waiting: list[_Write] = []
        self._taking = Lock()
        self._committing = Lock()

    def write(self, rows: Rows) -> None:
        """Return when `rows` are durable.

        Raises:
            StoreError: They are not, and why; the rows of others are not affected.
        """
        mine = _Write(rows)
        with self._taking:
            self._waiting.append(mine)
        with self._committing:
            if not mine.done:
                self._commit_all(self._take())
        if mine.error is not None:
            raise mine.error

    def _take(self) -> list[_Write]:
        with self._taking:
            batch, self._waiting = self._waiting, []
        return batch

    def _commit_all(self, batch: Sequence[_Write]) -> None:
        try:
            self._attempt(batch)
        except StoreUnreachable as error:
            _fail(batch, error)
        except StoreError:
            # One of them is at fault, and only its writer should hear of it.
            for write in batch:
                self._commit_one(write)
        except BaseException as error:
            _fail(batch, error)
            raise

    def _commit_one(self, write: _Write) -> None:
        try:
            self._attempt([write])
        except StoreError as error:
            _fail([write], error)

    def _attempt(self, batch: Sequence[_Write]) -> None:
        self._commit(merged([write.rows for write in batch]))
        for write in batch:
            write.done = True


def _fail(batch: Sequence[_Write], error: BaseException) -> None:
    for write in batch:
        write.done, write.error = True, error
