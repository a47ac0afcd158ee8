"""The file trail and measured outcomes: what a program read and removed, and a task's own metric.

Tool results that are there already were recorded without reads, so theirs are not known.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    nothing, unknown = sa.text("'[]'::jsonb"), sa.text("false")
    removed = sa.Column("removed", postgresql.JSONB(), nullable=False, server_default=nothing)
    op.add_column("tool_result", removed, schema="mappa")
    known = sa.Column("reads_known", sa.Boolean(), nullable=False, server_default=unknown)
    op.add_column("tool_result", known, schema="mappa")
    op.add_column("outcome", sa.Column("metric", sa.Text()), schema="mappa")
    for name in ("value", "charged", "skill"):
        op.add_column("outcome", sa.Column(name, sa.Double()), schema="mappa")
    op.add_column("outcome", sa.Column("detail", sa.Text()), schema="mappa")
    op.create_check_constraint(
        op.f("ck_outcome_skill_range"), "outcome", "skill BETWEEN 0 AND 1", schema="mappa"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_outcome_skill_range"), "outcome", type_="check", schema="mappa")
    for name in ("metric", "value", "charged", "skill", "detail"):
        op.drop_column("outcome", name, schema="mappa")
    for name in ("removed", "reads_known"):
        op.drop_column("tool_result", name, schema="mappa")
