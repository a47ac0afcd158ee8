"""Addresses as people write them, and one line for everything that goes wrong."""

from dataclasses import replace
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from mappa_core.audit.columns import copied
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import DiskFull, StoreError, StoreUnreachable
from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.episodes import StopReason
from mappa_core.store import schema
from mappa_core.store.connection import boundary, connect, for_psql, normalised, ping
from mappa_core.store.embedded import EmbeddedPostgres
from mappa_core.store.store import Store
from tests.builders import make_episode, make_policy, make_problem, make_run, make_turn
from tests.conftest import execute


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_any_spelling_means_our_driver(scheme: str) -> None:
    address = normalised(f"{scheme}://ann:secret@host:5433/mappa?sslmode=require")
    assert address == make_url("postgresql+psycopg://ann:secret@host:5433/mappa?sslmode=require")


def test_psql_reads_the_address_without_our_driver() -> None:
    url = "postgresql+psycopg://ann:secret@host:5433/mappa"
    assert for_psql(url) == "postgresql://ann:secret@host:5433/mappa"


@pytest.mark.parametrize("folder", ["/my home/socket", "/a+b/socket"])
def test_psql_finds_a_socket_in_any_folder(folder: str) -> None:
    address = for_psql(f"postgresql:///mappa?host={quote(folder)}")
    assert conninfo_to_dict(address)["host"] == folder


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite:///mappa.db", "mysql://host/db"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="set MAPPA_DATABASE_URL to postgresql://"):
        Store.open(url)


def test_an_unreachable_server_is_one_line_without_the_password() -> None:
    with pytest.raises(StoreError) as caught:
        Store.open("postgres://ann:hunter2@127.0.0.1:1/mappa")
    message = str(caught.value)
    assert message.startswith("no Postgres at ")
    assert "MAPPA_DATABASE_URL" in message
    assert "\n" not in message
    assert "hunter2" not in message


def test_an_unknown_database_is_one_line(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        ping(postgres.url("nowhere"))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_keep_any_text_is_refused(
    postgres: EmbeddedPostgres, encoding: str
) -> None:
    made = f"CREATE DATABASE narrow ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    execute(postgres.url("postgres"), made)
    try:
        with pytest.raises(StoreError) as caught:
            schema.upgrade(postgres.url("narrow"))
    finally:
        execute(postgres.url("postgres"), "DROP DATABASE narrow WITH (FORCE)")
    assert str(caught.value) == (
        f"the encoding of database narrow is {encoding} and has to be UTF8; make it with "
        "CREATE DATABASE narrow ENCODING 'UTF8' TEMPLATE template0"
    )


def test_ping_says_the_version(postgres: EmbeddedPostgres) -> None:
    assert ping(postgres.url("mappa")).startswith("18.")


def test_a_full_disk_is_named() -> None:
    cause = psycopg.errors.DiskFull("could not extend file: No space left on device")
    with (
        pytest.raises(DiskFull, match="no space left"),
        boundary(make_url("postgresql://host/db")),
    ):
        raise OperationalError("INSERT", {}, cause)


@pytest.mark.parametrize("count", [1, 40], ids=["INSERT", "COPY"])
def test_every_way_in_speaks_in_one_line(store: Store, database_url: str, count: int) -> None:
    run, policy = make_run(), make_policy(make_run())
    store.runs.add_run(run)
    episodes = [
        replace(
            make_episode(run, make_problem(), rollout_index=index),
            turns=(make_turn(policy),),
            stop_reason=StopReason.ANSWERED,
        )
        for index in range(count)
    ]
    with pytest.raises(StoreError, match="fk_action_policy_version_id"):
        store.episodes.add_episodes(episodes, [])
    store.policies.add_policy_version(policy)
    execute(
        database_url,
        "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'no space' USING errcode = '53100'; END $$",
        "CREATE TRIGGER no_space BEFORE INSERT ON mappa.action EXECUTE FUNCTION no_space()",
    )
    with pytest.raises(DiskFull, match="no space left"):
        store.episodes.add_episodes(episodes, [])


def test_a_server_that_hangs_up_while_it_is_read_is_unreachable(database_url: str) -> None:
    engine = connect(database_url, pool_size=1)
    with (
        pytest.raises(StoreUnreachable, match="no Postgres at"),
        boundary(engine.url),
        engine.connect() as connection,
    ):
        copied(connection, "SELECT pg_terminate_backend(pg_backend_pid())")
    engine.dispose()


def test_the_audit_waits_as_the_store_does(database_url: str, postgres: EmbeddedPostgres) -> None:
    name, told = make_url(database_url).database, list[str]()
    administration = postgres.url("postgres")

    def allowed(yes: bool) -> None:
        execute(administration, f"ALTER DATABASE {name} ALLOW_CONNECTIONS {yes}")

    outage_retry = OutageRetry(seconds=30, tell=told.append, revive=lambda: allowed(True))
    store = Store.open(database_url, outage_retry)
    # Another pool: it has no connection yet that would outlive the outage.
    audit = AuditStore.open(database_url, store.database.outage_retry)
    allowed(False)
    assert audit.findings(make_run().id) == ()
    assert [line.split()[0] for line in told] == ["no", "back"]
    audit.close()
    store.close()


def test_a_lost_connection_is_replaced(
    store: Store, database_url: str, postgres: EmbeddedPostgres
) -> None:
    store.runs.add_run(make_run())
    execute(
        postgres.url("postgres"),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{make_url(database_url).database}'",
    )
    assert store.runs.list_runs() == (make_run(),)
