"""The revisions make what `tables` says, both ways, and the store refuses any other schema."""

from collections.abc import Iterator

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, text

from mappa_core.core.errors import SchemaMismatch
from mappa_core.store import schema
from mappa_core.store.connection import connect
from mappa_core.store.store import Store
from mappa_core.store.tables import METADATA, SCHEMA
from tests.builders import make_episode, make_policy, make_problem, make_run, make_score, make_turn
from tests.conftest import execute
from tests.integration.store.conftest import fill

CATALOGUE = """
SELECT 'column', table_name::text, column_name::text,
       concat_ws(' ', data_type, udt_name, is_nullable, column_default)
FROM information_schema.columns WHERE table_schema = 'mappa'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname::text, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'mappa'::regnamespace
UNION ALL
SELECT 'index', tablename::text, indexname::text, indexdef
FROM pg_indexes WHERE schemaname = 'mappa'
"""


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = connect(database_url, pool_size=1)
    yield engine
    engine.dispose()


@pytest.fixture
def empty_engine(empty_database_url: str) -> Iterator[Engine]:
    engine = connect(empty_database_url, pool_size=1)
    yield engine
    engine.dispose()


def migrate(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        config = schema.migration_config(connection)
        if revision == "head":
            command.upgrade(config, revision)
        else:
            command.downgrade(config, revision)


def catalogue(connection: Connection) -> set[tuple[str, ...]]:
    rows = connection.execute(text(CATALOGUE)).all()
    return {tuple(row) for row in rows if "alembic_version" not in row[1]}


MISPLACED = """
SELECT count(*) FILTER (WHERE action.id <> score.action_id), count(*)
FROM mappa.coach_score AS score
JOIN mappa.action USING (episode_id, turn_index)
"""
KNOWN = """
SELECT count(*) FROM pg_stats
WHERE tablename = 'coach_score' AND attname IN ('episode_id', 'turn_index')
"""
"""Statistics, without which Postgres takes each episode for thousands of scores."""


def judged(engine: Engine) -> list[set[tuple[object, ...]]]:
    """What SQL users read of all scores."""
    views = ("coach_bias", "action_scores")
    with engine.connect() as connection:
        rows = [connection.execute(text(f"TABLE audit.{view}")).all() for view in views]
    return [{tuple(row) for row in each} for each in rows]


def test_the_tables_are_those_of_the_code(engine: Engine) -> None:
    with engine.begin() as connection:
        command.check(schema.migration_config(connection))


def test_the_revisions_and_the_code_make_the_same_catalogue(
    engine: Engine, empty_engine: Engine
) -> None:
    with empty_engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        METADATA.create_all(connection)
        from_code = catalogue(connection)
    with engine.connect() as connection:
        assert catalogue(connection) == from_code


def test_up_down_up_on_an_empty_database(empty_engine: Engine) -> None:
    migrate(empty_engine, "head")
    with empty_engine.connect() as connection:
        first = catalogue(connection)
    migrate(empty_engine, "base")
    with empty_engine.connect() as connection:
        assert catalogue(connection) == set()
        assert connection.scalar(text("SELECT to_regnamespace('audit')")) is None
    migrate(empty_engine, "head")
    with empty_engine.connect() as connection:
        assert catalogue(connection) == first


def test_up_down_up_on_a_filled_database(filled_url: str) -> None:
    engine = connect(filled_url, pool_size=1)
    migrate(engine, "base")
    migrate(engine, "head")
    engine.dispose()
    store = Store.open(filled_url)
    assert store.runs.list_runs() == ()
    store.runs.add_run(make_run())
    assert store.runs.list_runs() == (make_run(),)
    store.close()


def test_every_score_gets_its_place_and_the_views_stay_as_they_were(
    store: Store, engine: Engine
) -> None:
    fill(store)
    run = make_run()
    solver, problem = make_policy(run), make_problem("What is 2 - 3?", task_type="subtraction")
    store.episodes.add_problems([problem])
    episode = make_episode(run, problem)
    store.episodes.open_episode(episode)
    for index, score in enumerate((1.0, 3.0, 8.0)):
        store.episodes.add_turn(episode, make_turn(solver, index=index))
        store.scores.add_scores([make_score(episode, index, score)])
    before = judged(engine)
    migrate(engine, "0019")
    assert judged(engine) == before
    migrate(engine, "head")
    assert judged(engine) == before
    with engine.connect() as connection:
        assert tuple(connection.execute(text(MISPLACED)).one()) == (0, 11)
        assert connection.scalar(text(KNOWN)) == 2
    scores = store.scores.scores_of_episode(episode.id)
    assert [(each.turn_index, each.score.value) for each in scores] == [(0, 1), (1, 3), (2, 8)]


def test_upgrading_is_harmless_when_repeated(empty_database_url: str) -> None:
    assert schema.current_revision(empty_database_url) is None
    schema.upgrade(empty_database_url)
    schema.upgrade(empty_database_url)
    assert schema.current_revision(empty_database_url) == schema.head_revision()


def test_what_takes_long_says_so_once(
    database_url: str, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    schema.upgrade(database_url)
    assert caplog.messages == []
    migrate(engine, "0019")
    schema.upgrade(database_url)
    (message,) = caplog.messages
    assert f"from schema 0019 to {schema.head_revision()}" in message


def test_an_empty_database_is_refused(empty_database_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"has no MAPPA tables.*run `mappa db upgrade`"):
        Store.open(empty_database_url)


def test_an_older_one_is_refused(engine: Engine, database_url: str) -> None:
    migrate(engine, "-1")
    with pytest.raises(SchemaMismatch, match=r"is at schema \d+.*run `mappa db upgrade`"):
        Store.open(database_url)


def test_a_newer_one_is_refused(database_url: str) -> None:
    execute(database_url, "UPDATE mappa.alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaMismatch, match="newer version of MAPPA"):
        Store.open(database_url)
    with pytest.raises(SchemaMismatch, match="newer version of MAPPA"):
        schema.upgrade(database_url)
