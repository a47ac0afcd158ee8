"""What a coach was asked, what it said beside the score, and what it was allowed to know.

A score that nobody can trace to its prompt is no evidence: each row now has the request word for
word, the attempts it took, marks, blame and correction, what the coach might know of the truth, and
the attempts to influence it that its reader saw. Older rows stay valid: they were given by the rule
coach in one attempt, without a request, knowing nothing.

Revision ID: 0003_coach
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003_coach"
down_revision = "0002"
branch_labels = None
depends_on = None

COLUMNS = (
    ("visibility", sa.Text(), "never"),
    ("criteria", postgresql.JSONB(), None),
    ("blamed", sa.Text(), None),
    ("correction", sa.Text(), None),
    ("request", postgresql.JSONB(), None),
    ("answered_version", sa.Text(), None),
    ("attempts", sa.Integer(), "1"),
    ("cached_tokens", sa.Integer(), None),
    ("thought_tokens", sa.Integer(), None),
    ("flags", postgresql.JSONB(), None),
)
"""Name, type and the value of older rows; null where they have none."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name, kind, older in COLUMNS:
        column = sa.Column(name, kind, server_default=older, nullable=older is None)
        op.add_column("coach_score", column, schema="mappa")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name, _, _ in reversed(COLUMNS):
        op.drop_column("coach_score", name, schema="mappa")
