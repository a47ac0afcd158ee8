"""Which of an action's tokens were put there to end a thought, and not sampled.

Null for an action whose tokens were all sampled, as those of every earlier revision were.

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("action", sa.Column("given", ARRAY(sa.Integer())), schema="mappa")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("action", "given", schema="mappa")
