"""An embedded Postgres: no server to install, one folder to throw away.

    <data directory>/
        cluster/        the data (what initdb made) and server.log
        socket/         the Unix socket; closed to all but this user and root
        software-*/     a copy of the programs, where the installed ones cannot be reached
        change.lock     held while a process starts or stops the server
        use.lock        shared by every process that uses it; the last one gets it for itself

The kernel gives a dead process's locks back, so a SIGKILL leaves nothing to clean up: the server
goes on, the next command finds it, and the last one to leave stops it.
"""

import atexit
import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psycopg
from psycopg import sql
from sqlalchemy import URL

from mappa_core.core.errors import DiskFull, StoreError, StoreUnreachable
from mappa_core.store import cluster as postgres
from mappa_core.store.cluster import SUPERUSER
from mappa_core.store.places import Cluster, find_cluster, make_home

DATABASES = ("mappa", "mlflow")
OURS = "mappa"
"""What our own connections call themselves; any other is a guest's."""
_RECOVERY_SECONDS = 120


class EmbeddedPostgres:
    """A running server, shared with every other process that started it on the same folder."""

    def __init__(self, cluster: Cluster, socket_folder: Path, use_lock: int) -> None:
        self._cluster = cluster
        self._socket_folder = socket_folder
        self._use_lock: int | None = use_lock
        atexit.register(self.close)

    def url(self, database: str) -> str:
        """The SQLAlchemy address of one database, through the Unix socket."""
        return URL.create(
            "postgresql+psycopg",
            username=SUPERUSER,
            database=database,
            query={"host": str(self._socket_folder), "application_name": OURS},
        ).render_as_string(hide_password=False)

    def revive(self) -> None:
        """Start the server again where it died; nothing where it runs.

        Raises:
            StoreUnreachable: It does not start.
        """
        try:
            with _changing(self._cluster.home):
                if postgres.running_socket(self._cluster) is None:
                    postgres.start(self._cluster)
        except StoreError as error:
            raise StoreUnreachable(str(error)) from error

    def leave_running(self) -> None:
        """Leave without stopping it, for a person who connects next; a later `close` stops it."""
        atexit.unregister(self.close)
        if self._use_lock is not None:
            os.close(self._use_lock)
            self._use_lock = None

    def close(self) -> None:
        """Leave; the last to leave stops the server, unless a guest is still connected.

        Guests are connections that are not MAPPA's own, e.g. psql. Safe to call twice.
        """
        atexit.unregister(self.close)
        if self._use_lock is None:
            return
        use_lock, self._use_lock = self._use_lock, None
        try:
            with _changing(self._cluster.home):
                socket_folder = postgres.running_socket(self._cluster)
                if socket_folder and _is_last(use_lock) and not _has_guests(socket_folder):
                    postgres.stop(self._cluster)
        finally:
            os.close(use_lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def start_embedded(data_directory: Path) -> EmbeddedPostgres:
    """Start Postgres on `data_directory`, or join the server that runs there.

    The databases `mappa` and `mlflow` exist when it returns. The first start takes about a second.

    Args:
        data_directory: Made when absent. As root it must not lie below a private folder.

    Raises:
        StoreError: It cannot live or start there; one line says why.
        DiskFull: No space left.
    """
    try:
        home = make_home(data_directory)
        with _changing(home):
            cluster = find_cluster(home)
            postgres.initialise(cluster)
            socket_folder = postgres.running_socket(cluster) or postgres.start(cluster)
            use_lock = _open_lock(cluster.home / "use.lock")
            fcntl.flock(use_lock, fcntl.LOCK_SH)
            server = EmbeddedPostgres(cluster, socket_folder, use_lock)
            _create_databases(socket_folder)
        return server
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"no space left for Postgres in {data_directory}; free some") from error
        raise StoreError(
            f"no Postgres in {data_directory}: {error}; set MAPPA_HOME to a folder of your own"
        ) from error


@contextmanager
def _changing(home: Path) -> Generator[None]:
    lock = _open_lock(home / "change.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_last(use_lock: int) -> bool:
    try:
        fcntl.flock(use_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_guests(socket_folder: Path) -> bool:
    with _connect(socket_folder) as connection:
        row = connection.execute(
            "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid() AND application_name <> %s",
            [OURS],
        ).fetchone()
    return row is not None and row[0] != "0"


def _create_databases(socket_folder: Path) -> None:
    with _connect(socket_folder) as connection:
        rows = connection.execute("SELECT datname FROM pg_database").fetchall()
        for name in sorted(set(DATABASES) - {row[0] for row in rows}):
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def _connect(socket_folder: Path) -> psycopg.Connection[tuple[str]]:
    """Connect, waiting while the server recovers from a crash."""
    deadline = time.monotonic() + _RECOVERY_SECONDS
    while True:
        try:
            return psycopg.connect(
                host=str(socket_folder), user=SUPERUSER, dbname="postgres", autocommit=True
            )
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                reason = str(error).splitlines()[0]
                raise StoreError(f"the embedded Postgres does not answer: {reason}") from error
            time.sleep(0.1)
