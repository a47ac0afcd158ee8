"""The experiment store on Postgres: every prompt, token, score and update, for good."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, text

from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.runs import ExportedAction, Run
from mappa_core.store import archive, schema
from mappa_core.store.claims import lock
from mappa_core.store.connection import connect, transaction_at
from mappa_core.store.database import Database
from mappa_core.store.episodes import Episodes
from mappa_core.store.exporting import exported_actions
from mappa_core.store.figures import Figures
from mappa_core.store.policies import Policies
from mappa_core.store.runs import Runs
from mappa_core.store.scores import Scores
from mappa_core.store.updates import Updates

T = TypeVar("T")


class Store:
    """One small repository for each kind of record; safe to share between threads.

    Every write is durable when the call returns and harmless when repeated. All methods raise
    `StoreError` where Postgres is unreachable, refuses or is full.
    """

    def __init__(self, engine: Engine, outage_retry: OutageRetry) -> None:
        self.database = Database(engine, outage_retry)
        self.runs = Runs(self.database)
        self.policies = Policies(self.database)
        self.episodes = Episodes(self.database)
        self.scores = Scores(self.database)
        self.updates = Updates(self.database)
        self.figures = Figures(self.database)

    @classmethod
    def open(cls, url: str, outage_retry: OutageRetry | None = None) -> Self:
        """Connect and check the schema.

        Args:
            url: Any spelling of a Postgres address.
            outage_retry: For when Postgres goes away later; now it must be there. None has none.

        Raises:
            SchemaMismatch: The tables are older or newer than this version.
            StoreUnreachable: Postgres does not answer.
        """
        with transaction_at(url) as connection:
            schema.check(connection)
        return cls(connect(url), outage_retry or OutageRetry())

    def lock(self, identity: UUID) -> AbstractContextManager[None]:
        """Wait until no other process holds this lock, and hold it until the block ends."""
        return lock(self.database.engine, identity)

    def export_run(
        self, run: Run, folder: Path, write: Callable[[Iterator[ExportedAction]], T]
    ) -> T:
        """Write a run's rows into `folder` (see `archive`) and its actions by `write`.

        Both see one state of the database, and nothing is held in memory.
        """

        def exported(connection: Connection) -> T:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            archive.dump(connection, run.id, run.name, folder)
            return write(exported_actions(connection, run.id))

        return self.database.transaction(exported)

    def import_run(self, folder: Path) -> archive.Manifest:
        """Add the run of an export; a repeat changes nothing, and what fails leaves nothing.

        Raises:
            ArchiveError: It is damaged, of another version, or does not fit the database.
        """
        return self.database.transaction(lambda connection: archive.load(connection, folder))

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        self.database.engine.dispose()
