"""Opens the store: on the embedded Postgres, or where `MAPPA_DATABASE_URL` says."""

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from mappa_core.core.outage import OutageRetry
from mappa_core.core.settings import Settings
from mappa_core.store import schema
from mappa_core.store.connection import for_psql
from mappa_core.store.embedded import start_embedded
from mappa_core.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Databases:
    """Where the store and MLflow's records live."""

    store: str
    mlflow: str
    revive: Callable[[], None] | None
    """Starts the server again where it is ours."""


@contextmanager
def opened_databases(settings: Settings) -> Generator[Databases]:
    """Find the databases; an embedded server is started, or joined, and left with the block.

    Raises:
        StoreError: Postgres is unreachable.
        DiskFull: No space left.
    """
    if settings.database_url is not None:
        # Another database on that server is its owner's to make: MLFLOW_TRACKING_URI names it.
        mlflow = settings.mlflow_tracking_uri or f"sqlite:///{settings.mlflow_file}"
        yield Databases(store=settings.database_url, mlflow=mlflow, revive=None)
        return
    with start_embedded(settings.postgres) as server:
        mlflow = settings.mlflow_tracking_uri or server.url("mlflow")
        yield Databases(store=server.url("mappa"), mlflow=mlflow, revive=server.revive)


def open_store(settings: Settings, databases: Databases, outage_retry: OutageRetry) -> Store:
    """Open the store, migrated.

    An embedded or empty database is brought up to date; one that another program owns is not
    touched.

    Raises:
        StoreError: Postgres is unreachable.
        SchemaMismatch: `MAPPA_DATABASE_URL` names a database of another version.
    """
    url = databases.store
    if settings.database_url is None or schema.current_revision(url) is None:
        schema.upgrade(url)
    return Store.open(url, outage_retry)


@contextmanager
def opened_store(settings: Settings) -> Generator[Store]:
    """Open the store alone, for commands that only look."""
    with (
        opened_databases(settings) as databases,
        closing(open_store(settings, databases, OutageRetry())) as store,
    ):
        yield store


def database_url(settings: Settings) -> str:
    """The address of the store's database as psql reads it; an embedded server is left running.

    Raises:
        StoreError: Postgres is unreachable.
    """
    if settings.database_url is not None:
        return for_psql(settings.database_url)
    embedded = start_embedded(settings.postgres)
    url = embedded.url("mappa")
    schema.upgrade(url)
    embedded.leave_running()
    return for_psql(url)
