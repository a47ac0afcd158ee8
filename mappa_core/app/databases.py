"""Opens what goes with the store: the audit's reader, MLflow's records, or all of them."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mappa_core.audit.store import AuditStore
from mappa_core.core.settings import Settings
from mappa_core.store.opening import opened_databases, opened_store
from mappa_core.store.store import Store
from mappa_core.tracking.mlflow.client import check_reachable
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.protocols import ModelRegistry


@contextmanager
def opened_audit(settings: Settings, database: str | None = None) -> Generator[AuditStore]:
    """Open the audit's side of the store, or of another database that holds its views.

    That one, e.g. a restored dump, is neither migrated nor written to.
    """
    with ExitStack() as stack:
        if database is None:
            yield AuditStore(stack.enter_context(opened_store(settings)).database)
        else:
            audit = AuditStore.open(database)
            stack.callback(audit.close)
            yield audit


@contextmanager
def opened_mlflow(settings: Settings) -> Generator[str]:
    """The address of MLflow's records; an embedded server runs as long as the block."""
    with opened_databases(settings) as databases:
        yield databases.mlflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is known about runs, to decide about them afterwards."""

    store: Store
    audit: AuditStore
    registry: ModelRegistry


@contextmanager
def opened_records(settings: Settings) -> Generator[Records]:
    """Open the store, its audit and the model registry, without engines or models."""
    with opened_store(settings) as store, opened_mlflow(settings) as mlflow:
        audit = AuditStore(store.database)
        yield Records(store=store, audit=audit, registry=MlflowRegistry(mlflow))


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
