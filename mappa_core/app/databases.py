"""The store, the audit's side of it and MLflow's records: opened together or alone."""

from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mappa_core.audit.store import AuditStore
from mappa_core.core.outage import OutageRetry
from mappa_core.core.settings import Settings
from mappa_core.store import backup, schema
from mappa_core.store.connection import for_psql, ping
from mappa_core.store.embedded import start_embedded
from mappa_core.store.store import Store
from mappa_core.tracking.mlflow.client import check_reachable
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.protocols import ModelRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class Databases:
    """Where the store and MLflow's records live."""

    store: str
    mlflow: str
    revive: Callable[[], None] | None
    """Starts the server again where it is ours."""


def open_store(settings: Settings, databases: Databases, outage_retry: OutageRetry) -> Store:
    """The store, migrated.

    An embedded or empty database is brought up to date; one somebody else owns is not touched.

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
    """The store alone, for commands that only look."""
    with ExitStack() as stack:
        store = open_store(settings, databases_of(settings, stack), OutageRetry())
        stack.callback(store.close)
        yield store


@contextmanager
def opened_audit(settings: Settings, database: str | None = None) -> Generator[AuditStore]:
    """The audit's side of the store, or of another database that holds its views.

    Args:
        settings: Where the store is.
        database: Address of a database to read instead, e.g. of a restored dump; it is neither
            migrated nor written to.
    """
    with ExitStack() as stack:
        if database is None:
            store = open_store(settings, databases_of(settings, stack), OutageRetry())
            stack.callback(store.close)
            yield AuditStore(store.database)
        else:
            audit = AuditStore.open(database)
            stack.callback(audit.close)
            yield audit


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


@contextmanager
def opened_mlflow(settings: Settings) -> Generator[str]:
    """The address of MLflow's records; an embedded server runs as long as the block."""
    with ExitStack() as stack:
        yield databases_of(settings, stack).mlflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is known about runs, for who decides about them afterwards."""

    store: Store
    audit: AuditStore
    registry: ModelRegistry


@contextmanager
def opened_records(settings: Settings) -> Generator[Records]:
    """The store, its audit and the model registry, without engines or models."""
    with ExitStack() as stack:
        databases = databases_of(settings, stack)
        store = open_store(settings, databases, OutageRetry())
        stack.callback(store.close)
        audit = AuditStore(store.database)
        yield Records(store=store, audit=audit, registry=MlflowRegistry(databases.mlflow))


def upgrade_database(settings: Settings) -> tuple[str | None, str | None]:
    """Bring the schema up to date; returns the revision before and after."""
    with ExitStack() as stack:
        url = databases_of(settings, stack).store
        before = schema.current_revision(url)
        schema.upgrade(url)
        return before, schema.current_revision(url)


def backup_database(settings: Settings, file: Path) -> None:
    """Write the store to one file; see `store.backup`."""
    with ExitStack() as stack:
        backup.backup(databases_of(settings, stack).store, file)


def restore_database(settings: Settings, file: Path) -> None:
    """Fill an empty store with a backup; see `store.backup`."""
    with ExitStack() as stack:
        backup.restore(databases_of(settings, stack).store, file)


def vacuum_database(settings: Settings) -> None:
    """Give the store's free space back; see `store.backup`."""
    with ExitStack() as stack:
        backup.vacuum(databases_of(settings, stack).store)


def databases_of(settings: Settings, stack: AsyncExitStack | ExitStack) -> Databases:
    """Where they are; an embedded server is started, or joined, and left with `stack`.

    Raises:
        StoreError: Postgres is unreachable.
        DiskFull: No space left.
    """
    if settings.database_url is not None:
        # Another database on somebody's server is theirs to make: MLFLOW_TRACKING_URI names it.
        url, mlflow, revive = settings.database_url, f"sqlite:///{settings.mlflow_file}", None
    else:
        embedded = start_embedded(settings.postgres)
        stack.callback(embedded.close)
        url, mlflow, revive = embedded.url("mappa"), embedded.url("mlflow"), embedded.revive
    tracking_uri = settings.mlflow_tracking_uri or mlflow
    return Databases(store=url, mlflow=tracking_uri, revive=revive)


def ping_mlflow(settings: Settings) -> str:
    """Where MLflow's records are, in words.

    Raises:
        TrackerError: Nothing answers where `MLFLOW_TRACKING_URI` says.
        ConfigError: It says no address.
    """
    if settings.mlflow_tracking_uri is not None:
        check_reachable(settings.mlflow_tracking_uri)
        return "MLFLOW_TRACKING_URI"
    if settings.database_url is not None:
        return str(settings.mlflow_file)
    return f"embedded in {settings.postgres}"


def ping_store(settings: Settings, stack: ExitStack) -> str:
    """What answers at the store's address, e.g. `PostgreSQL 18.4`."""
    return f"PostgreSQL {ping(databases_of(settings, stack).store)}"
