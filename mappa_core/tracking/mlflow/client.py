"""Opens MLflow quietly, and turns whatever goes wrong in it into `TrackerError`.

Everything goes through `MlflowClient` with explicit addresses: MLflow's fluent API keeps the
current server and the current run in globals. The import takes seconds and happens on first use, if
not before.
"""

import errno
import fcntl
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from mappa_core.core.errors import (
    ConfigError,
    DiskFull,
    TrackerError,
    TrackerUnreachable,
    first_line,
)
from mappa_core.core.outage import OutageRetry

if TYPE_CHECKING:
    from mlflow.store.entities import PagedList
    from mlflow.tracking import MlflowClient

QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Everything worth saying is in the exception, and `boundary` says it once.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Seven by default, with doubling pauses: four minutes until a dead server is reported.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
}
"""Set before MLflow is imported, unless the environment says otherwise."""

DEFAULT_PORTS = {"http": 80, "https": 443}
CONNECT_SECONDS = 5.0
OUTSIDE = frozenset({"mlflow", "sqlalchemy", "psycopg"})
"""Libraries whose exceptions mean that MLflow failed. SQLAlchemy's come out raw on connecting."""
HUNG_UP = frozenset({"OperationalError", "ConnectionError", "ConnectTimeout", "ReadTimeout"})
"""What SQLAlchemy and requests raise where nothing answers."""


T = TypeVar("T")


class Mlflow:
    """MLflow at one address, opened on first use; calls are repeated while it is away."""

    def __init__(self, tracking_uri: str, outage_retry: OutageRetry | None = None) -> None:
        """Open nothing yet; without `outage_retry` a dead MLflow fails at once."""
        self._tracking_uri = tracking_uri
        self._outage_retry = outage_retry or OutageRetry()

    @cached_property
    def _client(self) -> "MlflowClient":
        return open_client(self._tracking_uri)

    def _call(self, doing: str, work: Callable[[], T]) -> T:
        """The result of `work`, which may be repeated.

        Args:
            doing: Completes "MLflow could not ...".
            work: Uses the client.

        Raises:
            TrackerError: As `boundary`.
        """

        def attempt() -> T:
            with boundary(doing):
                return work()

        return self._outage_retry.run(attempt)


def all_pages(page_after: "Callable[[str | None], PagedList[T]]") -> Iterator[T]:
    """What a search finds, page by page as MLflow gives it."""
    token = None
    while True:
        page = page_after(token)
        yield from page
        token = page.token
        if not token:
            return


def is_server(tracking_uri: str) -> bool:
    """Whether an MLflow server answers there, which then also chooses where artifacts go."""
    return urlsplit(tracking_uri).scheme in DEFAULT_PORTS


def open_client(tracking_uri: str) -> "MlflowClient":
    """A client of the server or database at `tracking_uri`; an empty database is filled.

    Raises:
        TrackerUnreachable: Nothing answers there.
        TrackerError: It is no MLflow.
        ConfigError: It is no address.
    """
    with boundary("open its records"):
        check_reachable(tracking_uri)
        import_mlflow(tracking_uri)
        from mlflow.tracking import MlflowClient

        # Where another library has imported MLflow before, it has not read how quiet it is to be.
        logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
        with _one_at_a_time(tracking_uri):
            client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
            # The registry opens the database a second time, on first use.
            client.search_registered_models(max_results=1)
        return client


def import_mlflow(tracking_uri: str) -> None:
    """Import what of MLflow a client of `tracking_uri` uses, and keep it quiet."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    store = "mlflow.store.tracking.sqlalchemy_store"
    import_module("mlflow.tracking" if is_server(tracking_uri) else store)


@contextmanager
def _one_at_a_time(tracking_uri: str) -> Generator[None]:
    """Let one process of this user in at a time: two would fill an empty database at once.

    A server does that by itself, and one that hangs is not to be waited for in a row.
    """
    if is_server(tracking_uri):
        yield
        return
    name = f"mappa-mlflow-{os.getuid()}-{sha256(tracking_uri.encode()).hexdigest()[:16]}"
    with (Path(tempfile.gettempdir()) / name).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_reachable(tracking_uri: str) -> None:
    """Fail in seconds where nothing listens; MLflow itself would go on trying for minutes.

    Raises:
        TrackerUnreachable: Nothing does.
        ConfigError: It is no address.
    """
    host, port = _address(tracking_uri)
    if not host:
        return
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise TrackerUnreachable(
            f"MLflow is not reachable at {host}:{port} ({error.strerror or error}): "
            "start it, or unset MLFLOW_TRACKING_URI to keep its records in MAPPA_HOME"
        ) from error


def _address(tracking_uri: str) -> tuple[str | None, int]:
    try:
        address = urlsplit(tracking_uri)
        return address.hostname, address.port or DEFAULT_PORTS.get(address.scheme, 5432)
    except ValueError as error:
        # Nothing of it is quoted: a password with a slash in it is taken for the port.
        raise ConfigError(
            "MLFLOW_TRACKING_URI names no host and port: write it as http://HOST:PORT or "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the password's signs as %XX"
        ) from error


@contextmanager
def boundary(doing: str) -> Generator[None]:
    """Turn failures of MLflow, of its database and of its disk into ours.

    Args:
        doing: Completes "MLflow could not ...".

    Raises:
        TrackerUnreachable: MLflow or its database does not answer.
        TrackerError: It refused.
        DiskFull: Its artifacts do not fit.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"no space left to {doing} in MLflow: make room and resume") from error
        raise _ours(doing, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in OUTSIDE:
            raise
        raise _ours(doing, error) from error


def _ours(doing: str, error: Exception) -> TrackerError:
    message = f"MLflow could not {doing}: {first_line(error)}"
    return TrackerUnreachable(message) if _away(error) else TrackerError(message)


def _away(error: Exception) -> bool:
    """Whether MLflow or its database does not answer, rather than refuses."""
    return getattr(error, "error_code", None) == "TEMPORARILY_UNAVAILABLE" or any(
        isinstance(cause, ConnectionError) or type(cause).__name__ in HUNG_UP
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
