"""Who may do what in the store: three roles of Postgres, granted to logins by those who run it.

owner            whoever migrates: the tables are its own
mappa_run        plays, scores and trains: adds rows, ends runs and episodes, changes no score; it
                 makes the experiment that a person asks for in between, and asks again in it
mappa_auditor    reads, and writes what audits and labellers find

Roles belong to the server, so that another MAPPA or its administrator may have made them already.
"""

from sqlalchemy import Connection, text

RUN, AUDITOR = "mappa_run", "mappa_auditor"
_GRANTED = text(
    "SELECT has_table_privilege(oid, 'mappa.experiment_score', 'INSERT') "
    "FROM pg_roles WHERE rolname = :run"
)
"""The right that came last: a database of the newest revision may be without it."""
_CREATE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'this login may make no roles; the server''s administrator does it once: '
            'CREATE ROLE {role} NOLOGIN';
END
$$
"""
# Everything by INSERT; by UPDATE only what becomes known later, column by column.
_GRANT = """
GRANT USAGE ON SCHEMA mappa, audit TO mappa_run, mappa_auditor;
GRANT SELECT ON ALL TABLES IN SCHEMA mappa, audit TO mappa_run, mappa_auditor;

GRANT INSERT ON ALL TABLES IN SCHEMA mappa TO mappa_run;
REVOKE INSERT ON mappa.alembic_version, mappa.human_label FROM mappa_run;
GRANT UPDATE (status, error, ended_at, provenance, prefect_flow_run_id, mlflow_run_id)
    ON mappa.run TO mappa_run;
GRANT UPDATE (stop_reason, error, closed_at) ON mappa.episode TO mappa_run;
GRANT UPDATE (attributes) ON mappa.problem TO mappa_run;
GRANT UPDATE (trained) ON mappa.coach_score TO mappa_run;
GRANT UPDATE (model_version, unseen, score, unscored_reason)
    ON mappa.experiment_score TO mappa_run;
GRANT UPDATE (registered_model, model_version) ON mappa.checkpoint TO mappa_run;
GRANT DELETE ON mappa.audit_finding TO mappa_run;

GRANT INSERT, DELETE ON mappa.audit_finding TO mappa_auditor;
GRANT INSERT, UPDATE ON mappa.human_label, mappa.experiment_score TO mappa_auditor;
GRANT INSERT ON mappa.anchor, mappa.anchor_score, mappa.correction, mappa.corrected_score,
    mappa.coach_exam TO mappa_auditor;
"""


def create(connection: Connection) -> None:
    """Make the roles that are not there.

    Raises:
        DBAPIError: One is missing, and this login may not make it; the message says who may.
    """
    for role in (RUN, AUDITOR):
        connection.execute(text(_CREATE.format(role=role)))


def are_granted(connection: Connection) -> bool:
    """Whether the role of runs may do all that it needs."""
    return bool(connection.execute(_GRANTED, {"run": RUN}).scalar())


def grant(connection: Connection) -> None:
    """Give the roles their rights on all tables of the newest revision."""
    for statement in filter(str.strip, _GRANT.split(";")):
        connection.execute(text(statement))
