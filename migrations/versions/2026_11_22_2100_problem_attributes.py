"""What is known of a problem (year, contest, number), and figures comparable over tasks.

Problems and outcomes that are there already have none: a problem gets its own when a run draws it
again, an outcome stays as it was measured.

Revision ID: 0014
Revises: 0013
"""

from types import ModuleType

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

LAST_COLUMNS = {"evaluations": "        AS mean_skill", "manifests": "    problem.statement"}
COMMENTS = {
    "COLUMN audit.evaluations.attributes": "What is known of the problem, e.g. contest, year and "
    "number, by name.",
    "COLUMN audit.manifests.attributes": "What is known of the problem, by name.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    known = sa.Column(
        "attributes", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb")
    )
    op.add_column("problem", known, schema="mappa")
    op.add_column("outcome", sa.Column("figures", postgresql.JSONB()), schema="mappa")
    for view, last in LAST_COLUMNS.items():
        wider = _views()[view].replace(last, f"{last},\n    problem.attributes", 1)
        op.execute(wider.replace("CREATE", "CREATE OR REPLACE", 1))
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for view, statement in _views().items():
        # A view cannot lose a column.
        op.execute(f"DROP VIEW audit.{view}")
        op.execute(statement)
        op.execute(f"GRANT SELECT ON audit.{view} TO mappa_auditor")
    for target, comment in _earlier().COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.drop_column("outcome", "figures", schema="mappa")
    op.drop_column("problem", "attributes", schema="mappa")


def _earlier() -> ModuleType:
    """The revision that wrote the views as they were."""
    return context.script.get_revision("0009").module


def _views() -> dict[str, str]:
    return _earlier().VIEWS
