"""Why a person was shown an action: only a random sample may speak for all actions.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

VIEW = """
CREATE VIEW audit.human_labels AS
SELECT
    episode.run_id, label.action_id, label.labeller, label.score AS label_score, label.note,
    label.labelled_at{picked}
FROM mappa.human_label AS label
JOIN mappa.action ON action.id = label.action_id
JOIN mappa.episode ON episode.id = action.episode_id
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    picked = sa.Column("picked", sa.Text(), nullable=False, server_default="random")
    op.add_column("human_label", picked, schema="mappa")
    _make_view(", label.picked")
    op.execute(
        "COMMENT ON COLUMN audit.human_labels.picked IS 'Why the action was shown: contested "
        "(coaches disagree), unsure (the audit cannot tell about its kind) or random.'"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP VIEW audit.human_labels")
    op.drop_column("human_label", "picked", schema="mappa")
    _make_view("")


def _make_view(picked: str) -> None:
    op.execute("DROP VIEW IF EXISTS audit.human_labels")
    op.execute(VIEW.format(picked=picked))
    op.execute("COMMENT ON VIEW audit.human_labels IS 'Scores that people gave to actions.'")
    op.execute("GRANT SELECT ON audit.human_labels TO mappa_auditor")
