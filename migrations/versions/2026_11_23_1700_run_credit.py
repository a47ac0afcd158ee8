"""What each run's actions were held to account for, in `audit.runs`: figures of updates need it.

Revision ID: 0018
Revises: 0017
"""

from types import ModuleType

from alembic import context, op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

LAST_COLUMN = "    provenance\n"
CREDIT = """    provenance,
    coalesce(config -> 'algorithm' ->> 'credit', 'action') AS credit,
    coalesce((config -> 'algorithm' ->> 'discount')::float8, 1) AS discount
"""
COMMENTS = {
    "credit": "What an action was held to account for: action (its own score), return (also the "
    "later ones of its agent in the episode), team (the mean of its own and all later ones).",
    "discount": "Of a return, for each of the actions of the agent that a score is ahead.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(_runs().replace(LAST_COLUMN, CREDIT, 1))
    for column, comment in COMMENTS.items():
        op.execute(f"COMMENT ON COLUMN audit.runs.{column} IS '{comment}'")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # A view cannot lose a column.
    op.execute("DROP VIEW audit.runs")
    op.execute(_runs())
    audits, baselines, provenance = map(_revision, ("0006", "0012", "0013"))
    comments = {
        "VIEW audit.runs": audits.COMMENTS["VIEW audit.runs"],
        "COLUMN audit.runs.baseline": baselines.COMMENTS["COLUMN audit.runs.baseline"],
        "COLUMN audit.runs.provenance": provenance.COMMENT,
    }
    for target, comment in comments.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute("GRANT SELECT ON audit.runs TO mappa_auditor")


def _runs() -> str:
    """The view as it was."""
    with_provenance = _revision("0013")
    baselines: str = _revision("0012").RUNS
    return baselines.replace(with_provenance.LAST_COLUMN, with_provenance.PROVENANCE, 1)


def _revision(name: str) -> ModuleType:
    return context.script.get_revision(name).module
