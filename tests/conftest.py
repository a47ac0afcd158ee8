"""One embedded Postgres for the whole session, and a fresh, migrated database per test.

Databases are clones of a template (some 20 ms each), so tests share nothing and need no clean-up.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

from mappa_core.models.resolve import BUNDLED, resolve_model
from mappa_core.store import schema
from mappa_core.store.connection import for_psql, normalised
from mappa_core.store.embedded import EmbeddedPostgres, start_embedded
from mappa_core.store.store import Store

NewDatabase = Callable[[], str]

# A busy machine is not a bug.
settings.register_profile("mappa", deadline=None)
settings.load_profile("mappa")


def execute(url: str, *statements: str) -> None:
    """Run statements one by one, outside any transaction."""
    with psycopg.connect(for_psql(url), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that other users can pass through, as Postgres needs where the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="mappa-tests-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres(open_folder: Path) -> Iterator[EmbeddedPostgres]:
    with start_embedded(open_folder / "session") as server:
        # Tests do not outlive a power cut.
        execute(server.url("postgres"), "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="session")
def new_database(postgres: EmbeddedPostgres) -> NewDatabase:
    """Make a database at the newest revision; returns its address."""
    administration = postgres.url("postgres")
    execute(administration, "CREATE DATABASE template_mappa")
    schema.upgrade(postgres.url("template_mappa"))
    numbers = count(1)

    def make() -> str:
        name = f"test_{next(numbers)}"
        execute(administration, f"CREATE DATABASE {name} TEMPLATE template_mappa")
        return postgres.url(name)

    return make


@pytest.fixture
def database_url(new_database: NewDatabase, postgres: EmbeddedPostgres) -> Iterator[str]:
    """The address of a fresh, migrated database."""
    url = new_database()
    yield url
    # Dropped at once, its pages never reach the disk.
    name = normalised(url).database
    execute(postgres.url("postgres"), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The address of a database without any tables."""
    execute(postgres.url("postgres"), "CREATE DATABASE test_empty")
    yield postgres.url("test_empty")
    execute(postgres.url("postgres"), "DROP DATABASE test_empty WITH (FORCE)")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """The store on a fresh database."""
    opened = Store.open(database_url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled SmolLM2, converted once for the session (some 15 s)."""
    return resolve_model(BUNDLED, tmp_path_factory.mktemp("models"))
