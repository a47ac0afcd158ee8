"""What each run's figures are made with: versions and fingerprints, beside its configuration.

Revision ID: 0013
Revises: 0012
"""

from types import ModuleType

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

LAST_COLUMN = "    ) AS baseline\n"
PROVENANCE = "    ) AS baseline,\n    provenance\n"
COMMENT = (
    "What the run is made with (versions and fingerprints by name), one entry for each time that "
    "it went on otherwise; null where a run of an earlier version did not record it."
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("run", sa.Column("provenance", postgresql.JSONB()), schema="mappa")
    op.execute(_runs().RUNS.replace(LAST_COLUMN, PROVENANCE, 1))
    op.execute(f"COMMENT ON COLUMN audit.runs.provenance IS '{COMMENT}'")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # A view cannot lose a column.
    op.execute("DROP VIEW audit.runs")
    earlier = _runs()
    op.execute(earlier.RUNS)
    audits = context.script.get_revision("0006").module
    column = "COLUMN audit.runs.baseline"
    comments = {"VIEW audit.runs": audits.COMMENTS["VIEW audit.runs"]}
    for target, comment in (comments | {column: earlier.COMMENTS[column]}).items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute("GRANT SELECT ON audit.runs TO mappa_auditor")
    op.drop_column("run", "provenance", schema="mappa")


def _runs() -> ModuleType:
    """The revision that wrote the view as it was."""
    return context.script.get_revision("0012").module
