"""Least privilege on a real Postgres: logins of the run's and the auditor's role, and the owner."""

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import make_url

from mappa_core.audit.records import Exam, ExamLine, ExamScore, ExperimentScore, HumanLabel
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.store import AuditStore
from mappa_core.core import ids
from mappa_core.core.errors import StoreError
from mappa_core.core.records.episodes import StopReason
from mappa_core.core.records.runs import RunStatus
from mappa_core.store import schema
from mappa_core.store.connection import for_psql
from mappa_core.store.embedded import EmbeddedPostgres
from mappa_core.store.store import Store
from tests.builders import make_episode, make_problem, make_run
from tests.conftest import NewDatabase, execute
from tests.integration.store.conftest import TASK_TYPES, fill

RUN = make_run()
EPISODE = make_episode(RUN, make_problem("What is 2 + 3?", task_type=TASK_TYPES["What is 2 + 3?"]))
ACTION = ids.action_id(EPISODE.id, 0)
EXAM = Exam(
    id=ids.content_id("exam", 1),
    coach="openai",
    model="m",
    rubric_version="paper-1",
    rubric_sha256="ab" * 32,
    team="mathchat",
    share=0.75,
    low=0.5,
    high=1.0,
    passed=False,
    pairs=2,
    problems=1,
    asked=3,
    unscored=1,
    lines=(ExamLine(of="right over wrong", share=1.0, low=0.0, high=1.0, pairs=1),),
    scores=(ExamScore(problem=0, agent="verifier", work="right", score=None, said="timeout: "),),
)
ASKED = ExperimentScore(
    action_id=ACTION,
    change="as it was",
    put="",
    coach="rule",
    model="rules",
    model_version="1",
    rubric_sha256="ab",
    unseen=False,
)


@pytest.fixture(scope="module", autouse=True)
def logins(new_database: NewDatabase, postgres: EmbeddedPostgres) -> Iterator[None]:
    """One login in each role, as the administrator of a server makes them."""
    new_database()  # the roles are there once a database was migrated
    administration = postgres.url("postgres")
    execute(
        administration,
        "CREATE ROLE a_worker LOGIN IN ROLE mappa_run",
        "CREATE ROLE an_auditor LOGIN IN ROLE mappa_auditor",
    )
    yield
    execute(administration, "DROP ROLE a_worker", "DROP ROLE an_auditor")


def logged_in(url: str, name: str) -> str:
    return make_url(url).set(username=name).render_as_string()


def refused(url: str, name: str, statement: str) -> bool:
    """Whether Postgres says that `name` lacks the right."""
    try:
        with psycopg.connect(for_psql(logged_in(url, name))) as connection:
            connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_a_worker_plays_scores_trains_audits_and_ends_a_run(database_url: str) -> None:
    store = Store.open(logged_in(database_url, "a_worker"))
    fill(store)
    store.runs.link_run(RUN.id, prefect_flow_run_id="p", mlflow_run_id="m")
    store.runs.set_provenance(RUN.id, ())
    known = replace(EPISODE.problem, attributes={"year": 2024})
    store.runs.add_manifest(RUN.id, "train", [known])
    assert store.episodes.get_episode(str(EPISODE.id)).problem == known
    audit = AuditStore(store.database)
    # Its coach's exam, before it begins.
    assert audit.exam(EXAM.id) is None
    audit.add([EXAM])
    assert audit.exam(EXAM.id) == EXAM
    audit_run(audit, RUN.name, 0.5, record=True, simulations=0)
    audit_run(audit, RUN.name, 0.5, record=True, simulations=0)
    # What a person who is asked in between may choose.
    for answer in (replace(ASKED, unscored_reason="timeout"), replace(ASKED, score=4.0)):
        audit.add_experiment([answer])
    assert audit.experiment_scores(RUN.id) == (replace(ASKED, score=4.0),)
    with store.runs.claim_run(RUN.id):
        store.runs.set_status(RUN.id, RunStatus.COMPLETED)
    assert store.runs.get_run(RUN.name).status is RunStatus.COMPLETED
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mappa.mine (id int)",
        "ALTER TABLE mappa.coach_score ADD COLUMN mine int",
        "DROP TABLE mappa.coach_score",
        "TRUNCATE mappa.coach_score",
        "DELETE FROM mappa.coach_score",
        "UPDATE mappa.coach_score SET score = 10",
        "UPDATE mappa.outcome SET success = true",
        "UPDATE mappa.problem SET answer = '5'",
        "UPDATE mappa.action SET text = 'better'",
        "DELETE FROM mappa.run",
        "UPDATE mappa.run SET config = '{}'",
        "INSERT INTO mappa.human_label SELECT FROM mappa.human_label",
        "UPDATE mappa.experiment_score SET action_id = action_id",
        "DELETE FROM mappa.experiment_score",
        "UPDATE mappa.alembic_version SET version_num = '0001'",
        "CREATE ROLE mine",
    ],
)
def test_a_worker_changes_neither_the_schema_nor_what_was_scored(
    filled_url: str, statement: str
) -> None:
    assert refused(filled_url, "a_worker", statement)


def test_an_auditor_reads_a_run_and_writes_audit_and_labels(filled_url: str) -> None:
    url = logged_in(filled_url, "an_auditor")
    store = Store.open(url)
    audit = AuditStore(store.database)
    assert store.episodes.get_episode(str(EPISODE.id)).stop_reason is StopReason.ANSWERED
    audited = audit_run(audit, RUN.name, 0.5, record=True, simulations=0)
    looks = audit.findings(RUN.id, "look")
    assert len(looks) == 1
    assert len(audit.findings(RUN.id)) == len(audited.result.findings) + len(looks)
    audit.add([EXAM])
    assert audit.exam(EXAM.id) == EXAM
    for score in (3.0, 4.0):
        audit.add_labels([HumanLabel(action_id=ACTION, labeller="ann", score=score)])
        audit.add_experiment([replace(ASKED, score=score)])
    assert audit.experiment_scores(RUN.id) == (replace(ASKED, score=4.0),)
    with pytest.raises(StoreError, match="permission denied for table run"):
        store.runs.set_status(RUN.id, RunStatus.COMPLETED)
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO mappa.coach_score SELECT * FROM mappa.coach_score",
        "UPDATE mappa.coach_score SET score = 10",
        "DELETE FROM mappa.human_label",
        "DELETE FROM mappa.run",
        "CREATE TABLE mappa.mine (id int)",
    ],
)
def test_an_auditor_writes_nothing_else(filled_url: str, statement: str) -> None:
    assert refused(filled_url, "an_auditor", statement)


def test_a_right_that_came_later_is_given_to_a_database_of_the_newest_revision(
    database_url: str,
) -> None:
    execute(database_url, "REVOKE INSERT ON mappa.experiment_score FROM mappa_run")
    schema.upgrade(database_url)
    with psycopg.connect(for_psql(database_url)) as connection:
        query = "SELECT has_table_privilege('a_worker', 'mappa.experiment_score', 'INSERT')"
        assert connection.execute(query).fetchone() == (True,)


def test_an_owner_that_may_make_no_roles_is_told_who_may(postgres: EmbeddedPostgres) -> None:
    """Roles are the server's, whose role is out of the way meanwhile."""
    administration = postgres.url("postgres")
    execute(
        administration,
        "CREATE ROLE an_owner LOGIN",
        "CREATE DATABASE owned OWNER an_owner",
        "ALTER ROLE mappa_run RENAME TO mappa_run_aside",
    )
    url = logged_in(postgres.url("owned"), "an_owner")
    try:
        with pytest.raises(StoreError, match="CREATE ROLE mappa_run NOLOGIN"):
            schema.upgrade(url)
        assert schema.current_revision(url) is None
        execute(administration, "ALTER ROLE mappa_run_aside RENAME TO mappa_run")
        schema.upgrade(url)
        assert not refused(url, "a_worker", "SELECT count(*) FROM mappa.run")
    finally:
        execute(administration, "DROP DATABASE owned WITH (FORCE)", "DROP ROLE an_owner")
