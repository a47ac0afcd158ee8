"""A backup is of the server that is meant, and a restore is all of it or nothing."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from mappa_core.core.errors import ArchiveError, MappaError, StoreError
from mappa_core.store import backup, schema
from mappa_core.store.connection import for_psql
from mappa_core.store.embedded import EmbeddedPostgres
from mappa_core.store.store import Store
from tests.builders import make_problem, make_run
from tests.conftest import NewDatabase, execute

THEIRS = ("CREATE SCHEMA audit", "CREATE TABLE audit.log AS SELECT 1 AS entry")


@pytest.fixture
def dump(filled_url: str, tmp_path: Path) -> Path:
    """A backup of the run worked by hand."""
    backup.backup(filled_url, tmp_path / "store.dump")
    return tmp_path / "store.dump"


def schemas(url: str) -> list[str]:
    query = "SELECT nspname FROM pg_namespace WHERE nspname ~ 'mappa|audit' ORDER BY 1"
    with psycopg.connect(for_psql(url)) as connection:
        return [name for (name,) in connection.execute(query)]


def test_an_empty_store_becomes_the_backup(dump: Path, new_database: NewDatabase) -> None:
    url = new_database()
    backup.restore(url, dump)
    store = Store.open(url)
    assert store.runs.list_runs() == (make_run(),)
    store.close()
    assert schemas(url) == ["audit", "mappa"]
    with pytest.raises(ArchiveError, match="holds runs"):
        backup.restore(url, dump)


def test_who_may_make_no_roles_can_upgrade_and_restore(
    dump: Path, postgres: EmbeddedPostgres
) -> None:
    """Where the role of the auditors is there, as it is on this server."""
    administration = postgres.url("postgres")
    execute(administration, "CREATE ROLE plain LOGIN", "CREATE DATABASE plain OWNER plain")
    url = make_url(postgres.url("plain")).set(username="plain").render_as_string()
    try:
        schema.upgrade(url)
        backup.restore(url, dump)
    finally:
        execute(administration, "DROP DATABASE plain WITH (FORCE)", "DROP ROLE plain")


def text_file(dump: Path) -> None:
    dump.write_text("not a dump")


def cut_off(dump: Path) -> None:
    """Noticed when the last table is read, long after the first was restored."""
    dump.write_bytes(dump.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [text_file, cut_off])
def test_a_damaged_backup_changes_nothing(
    damage: Callable[[Path], None], dump: Path, new_database: NewDatabase
) -> None:
    damage(dump)
    url = new_database()
    store = Store.open(url)
    problem = make_problem("here before")
    store.episodes.add_problems([problem])
    with pytest.raises(MappaError):
        backup.restore(url, dump)
    assert schemas(url) == ["audit", "mappa"]
    with psycopg.connect(for_psql(url)) as connection:
        assert connection.execute("SELECT statement FROM mappa.problem").fetchall() == [
            ("here before",)
        ]
    store.runs.add_run(make_run())
    store.close()


@pytest.mark.parametrize("content", [None, "not a dump"])
def test_another_programs_schema_is_left_as_it_is(
    dump: Path, empty_database_url: str, content: str | None
) -> None:
    if content is not None:
        dump.write_text(content)
    execute(empty_database_url, *THEIRS)
    with pytest.raises(ArchiveError):
        backup.restore(empty_database_url, dump)
    execute(empty_database_url, "SELECT entry FROM audit.log")


def test_what_others_put_among_our_views_is_left_as_it_is(
    dump: Path, new_database: NewDatabase
) -> None:
    url = new_database()
    execute(url, THEIRS[1])
    with pytest.raises(ArchiveError, match="has a schema audit that is not MAPPA's"):
        backup.restore(url, dump)
    execute(url, "SELECT entry FROM audit.log")


def test_other_backups_are_refused_by_name(
    filled_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    execute(filled_url, "UPDATE mappa.alembic_version SET version_num = '9999'")
    backup.backup(filled_url, tmp_path / "newer.dump")
    with pytest.raises(ArchiveError, match="of a newer version"):
        backup.restore(empty_database_url, tmp_path / "newer.dump")
    execute(empty_database_url, *THEIRS)
    backup.backup(empty_database_url, tmp_path / "other.dump")
    with pytest.raises(ArchiveError, match="of something else"):
        backup.restore(empty_database_url, tmp_path / "other.dump")


def test_the_whole_address_is_followed(filled_url: str, tmp_path: Path) -> None:
    elsewhere = for_psql(filled_url) + "&port=1"
    with pytest.raises(StoreError, match="pg_dump failed"):
        backup.backup(elsewhere, tmp_path / "store.dump")
    assert not list(tmp_path.iterdir())


def test_a_word_that_libpq_does_not_know_is_one_line(filled_url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="colour"):
        backup.backup(for_psql(filled_url) + "&colour=red", tmp_path / "store.dump")
