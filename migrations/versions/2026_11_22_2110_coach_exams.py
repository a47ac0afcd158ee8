"""What coaches reached in the exam that they sit before they teach, and the view on it.

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

VIEW = """
CREATE VIEW audit.coach_exams AS
SELECT
    id AS exam_id, coach, model, rubric_version, rubric_sha256, team,
    share, low, high, passed, pairs, problems, asked, unscored, lines, scores, sat_at
FROM mappa.coach_exam
"""
COMMENTS = {
    "VIEW audit.coach_exams": "What each coach reached in the exam before it taught a team.",
    "COLUMN audit.coach_exams.share": "Of pairs of work of known order, those it put in that "
    "order; a tie counts half.",
    "COLUMN audit.coach_exams.low": "Of the 90 % interval, clustered by problem.",
    "COLUMN audit.coach_exams.lines": "The same by kind of pair and by agent.",
    "COLUMN audit.coach_exams.scores": "Every case with its score, or why there is none.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "coach_exam",
        sa.Column("id", sa.Uuid(), primary_key=True),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("coach", "model", "rubric_version", "rubric_sha256", "team")
        ),
        *(sa.Column(name, sa.Double(), nullable=False) for name in ("share", "low", "high")),
        sa.Column("passed", sa.Boolean(), nullable=False),
        *(
            sa.Column(name, sa.Integer(), nullable=False)
            for name in ("pairs", "problems", "asked", "unscored")
        ),
        *(sa.Column(name, postgresql.JSONB(), nullable=False) for name in ("lines", "scores")),
        sa.Column(
            "sat_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        schema="mappa",
    )
    op.execute(VIEW)
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute("GRANT SELECT ON audit.coach_exams TO mappa_auditor")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP VIEW audit.coach_exams")
    op.drop_table("coach_exam", schema="mappa")
