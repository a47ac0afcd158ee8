"""Why an update was not taken; null for those that were, and for all of earlier versions.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("update", sa.Column("skipped", sa.Text()), schema="mappa")


def downgrade() -> None:
    op.drop_column("update", "skipped", schema="mappa")
