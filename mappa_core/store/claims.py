"""Keeps two processes off one run, or one update: an advisory lock, held while it is at work.

The lock belongs to a connection, so Postgres lets go of it however the process ends. A pool of
connections between here and Postgres must therefore leave sessions alone (PgBouncer: session mode).

    outage ─▶ lock gone ─▶ taken again within CHECK_SECONDS
                              └─ another was faster ─▶ lost: nothing more is read or written
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Self
from uuid import UUID

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from mappa_core.core.errors import RunBusy, StoreError
from mappa_core.store.connection import boundary

TAKE_SECONDS = 5.0
"""A process that was killed a moment ago still has its lock until Postgres notices."""
CHECK_SECONDS = 10.0
"""How often the connection is looked after; a server that was restarted has forgotten the lock."""
_PAUSE_SECONDS = 0.1
_WATCHED = text(
    # A machine that lost power does not hang up: after a minute without an answer it has.
    "SELECT set_config('tcp_keepalives_idle', '20', false), "
    "set_config('tcp_keepalives_interval', '10', false), "
    "set_config('tcp_keepalives_count', '4', false)"
)
_WAIT = text("SELECT pg_advisory_lock(hashtextextended(:identity, 0))")
_TAKE = text("SELECT pg_try_advisory_lock(hashtextextended(:run, 0))")
TAKEN = text(
    "SELECT run.id FROM mappa.run JOIN pg_locks ON locktype = 'advisory' AND objsubid = 1 "
    "AND (classid::bigint << 32) + objid::bigint = hashtextextended(run.id::text, 0) "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Claim:
    """One run held by this process until the block ends, or until it is lost in an outage."""

    def __init__(self, engine: Engine, run_id: UUID) -> None:
        """Take it.

        Raises:
            RunBusy: Another process has it.
            StoreUnreachable: Postgres does not answer.
        """
        self._engine, self._run_id = engine, run_id
        self._connection = self._taken()
        self._over, self._lost = Event(), Event()
        self._watcher = Thread(target=self._watch, name="claim", daemon=True)
        self._watcher.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._watcher.join()
        if not self._connection.closed:
            self._connection.invalidate()
            self._connection.close()

    @property
    def over(self) -> bool:
        """Whether the block has ended."""
        return self._over.is_set()

    def check(self) -> None:
        """Refuse to go on with a run that was lost.

        Raises:
            RunBusy: Another process took it during an outage.
        """
        if self._lost.is_set() and not self.over:
            raise RunBusy(
                f"run {self._run_id} was taken over by another process while Postgres was away: "
                "it goes on there, and this process stops"
            )

    def _taken(self) -> Connection:
        with boundary(self._engine.url):
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                connection.execute(_WATCHED)
                self._take(connection)
            except BaseException:
                connection.close()
                raise
            return connection

    def _take(self, connection: Connection) -> None:
        deadline = time.monotonic() + TAKE_SECONDS
        while not connection.scalar(_TAKE, {"run": str(self._run_id)}):
            if time.monotonic() > deadline:
                raise RunBusy(
                    f"run {self._run_id} is in the hands of another process: wait for it, or end "
                    "that process first"
                )
            time.sleep(_PAUSE_SECONDS)

    def _watch(self) -> None:
        """Take it again after an outage; where another was faster, it is lost."""
        pause = CHECK_SECONDS
        while not self._over.wait(pause):
            try:
                if self._connection.closed:
                    self._connection = self._taken()
                else:
                    self._connection.execute(text("SELECT 1"))
                pause = CHECK_SECONDS
            except DBAPIError:
                self._connection.close()
                pause = _PAUSE_SECONDS
            except RunBusy:
                self._lost.set()
                return
            except StoreError:
                pause = _PAUSE_SECONDS


@contextmanager
def lock(engine: Engine, identity: UUID) -> Generator[None]:
    """Wait until no other process holds this lock, and hold it until the block ends.

    An outage of Postgres lets go of it.

    Raises:
        StoreUnreachable: Postgres does not answer.
    """
    with boundary(engine.url):
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        with boundary(engine.url):
            connection.execute(_WATCHED)
            connection.execute(_WAIT, {"identity": str(identity)})
        yield
    finally:
        connection.invalidate()
        connection.close()
