"""What the first start of compose's Postgres runs (infra/sql/databases.sql), on a server."""

import hmac
import os
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from mappa_core.store import schema
from mappa_core.store.connection import for_psql
from mappa_core.store.embedded import EmbeddedPostgres, start_embedded
from mappa_core.store.places import installed_programs

SCRIPT = Path(__file__).parents[3] / "infra" / "sql" / "databases.sql"


PASSWORDS = {"OWNER_PASSWORD": "o", "SERVICES_PASSWORD": "it's", "WORKER_PASSWORD": "w"}


@pytest.fixture(scope="module")
def server(open_folder: Path) -> Iterator[EmbeddedPostgres]:
    with start_embedded(open_folder / "first-start") as started:
        administration = for_psql(started.url("postgres"))
        with psycopg.connect(administration, autocommit=True) as connection:
            # A home's server makes these for itself, a container's does not.
            for name in ("mappa", "mlflow"):
                connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        subprocess.run(
            [
                installed_programs() / "psql",
                f"--dbname={administration}",
                "--set=ON_ERROR_STOP=1",
                "--quiet",
            ],
            # The embedded server comes without extensions.
            input=SCRIPT.read_text().replace("CREATE EXTENSION IF NOT EXISTS pg_trgm;", ""),
            text=True,
            check=True,
            env={**os.environ, **PASSWORDS},
        )
        yield started


def url(server: EmbeddedPostgres, login: str, database: str) -> str:
    return make_url(server.url(database)).set(username=login).render_as_string()


@pytest.mark.parametrize(
    ("login", "whose"),
    [
        ("mappa_owner", "OWNER"),
        ("mlflow", "SERVICES"),
        ("prefect", "SERVICES"),
        ("mappa_worker", "WORKER"),
    ],
)
def test_a_login_has_the_password_that_is_named_for_it(
    server: EmbeddedPostgres, login: str, whose: str
) -> None:
    with psycopg.connect(for_psql(server.url("postgres"))) as connection:
        asked = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
        row = connection.execute(asked, (login,)).fetchone()
    assert row is not None
    _, salted, keys = row[0].split("$")
    rounds, salt = salted.split(":")
    password = PASSWORDS[f"{whose}_PASSWORD"].encode()
    key = pbkdf2_hmac("sha256", password, b64decode(salt), int(rounds))
    known = sha256(hmac.digest(key, b"Client Key", "sha256")).digest()
    assert b64decode(keys.split(":")[0]) == known


def test_the_owner_migrates_and_the_worker_may_use_what_it_made(server: EmbeddedPostgres) -> None:
    schema.upgrade(url(server, "mappa_owner", "mappa"))
    worker = url(server, "mappa_worker", "mappa")
    assert schema.current_revision(worker) == schema.head_revision()
    with psycopg.connect(for_psql(worker)) as connection:
        assert connection.execute("SELECT count(*) FROM mappa.run").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DROP TABLE mappa.run")


@pytest.mark.parametrize("login", ["mlflow", "prefect"])
def test_a_service_owns_its_database(server: EmbeddedPostgres, login: str) -> None:
    with psycopg.connect(for_psql(url(server, login, login))) as connection:
        connection.execute("CREATE TABLE of_mine (id int)")


@pytest.mark.parametrize(
    ("login", "database"),
    [("mlflow", "mappa"), ("prefect", "mappa"), ("mappa_worker", "mlflow"), ("mlflow", "prefect")],
)
def test_a_login_reaches_no_database_of_others(
    server: EmbeddedPostgres, login: str, database: str
) -> None:
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(for_psql(url(server, login, database)))
