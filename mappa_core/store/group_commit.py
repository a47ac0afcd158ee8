"""Many writers, one commit: what piles up while the disk is busy becomes durable together.

    thread 1 ─ write ─▶ commits 1              ─▶ returns
    thread 2 ─ write ─▶ waits    ─▶ commits 2, 3, 4 ─▶ returns
    thread 3 ─ write ─▶ waits               ┘  ─▶ returns
    thread 4 ─ write ─▶ waits               ┘  ─▶ returns

There is no queue to fill and no thread to lose: a writer waits until its own rows are durable,
which is the back-pressure, and the first writer after that commits for all that wait.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import TypeAlias

from mappa_core.core.errors import StoreError, StoreUnreachable
from mappa_core.store.insert import Rows, merged

_Write: TypeAlias = tuple[Rows, Future[None]]


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
        written = Future[None]()
        with self._taking:
            self._waiting.append((rows, written))
        with self._committing:
            if not written.done():
                with self._taking:
                    batch, self._waiting = self._waiting, []
                self._commit_all(batch)
        written.result()

    def _commit_all(self, batch: Sequence[_Write]) -> None:
        try:
            self._commit(merged([rows for rows, _ in batch]))
        except BaseException as error:  # noqa: BLE001 (every writer raises it)
            refused = isinstance(error, StoreError) and not isinstance(error, StoreUnreachable)
            if refused and len(batch) > 1:
                # One of them is at fault, and only its writer should hear of it.
                for write in batch:
                    self._commit_all([write])
                return
            for _, written in batch:
                written.set_exception(error)
        else:
            for _, written in batch:
                written.set_result(None)
