"""${message}: say here why the tables change.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Give up rather than stand in everybody's way behind a long transaction.
    op.execute("SET LOCAL lock_timeout = '5s'")
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    ${downgrades if downgrades else "pass"}
