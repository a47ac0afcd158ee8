"""Experiments on stored actions: each scoring of an action with one thing changed.

Revision ID: 0016
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

VIEW = """
CREATE VIEW audit.experiment_scores AS
SELECT
    episode.run_id, run.name AS run, score.action_id, problem.id AS problem_id, problem.task_type,
    action.agent, episode.iteration, outcome.success, score.change, score.put, score.unseen,
    score.score, score.unscored_reason, score.coach, score.model AS coach_model,
    score.model_version, score.rubric_sha256, score.scored_at
FROM mappa.experiment_score AS score
JOIN mappa.action ON action.id = score.action_id
JOIN mappa.episode ON episode.id = action.episode_id
JOIN mappa.run ON run.id = episode.run_id
JOIN mappa.problem ON problem.id = episode.problem_id
LEFT JOIN mappa.outcome ON outcome.episode_id = episode.id
"""

COMMENTS = {
    "VIEW audit.experiment_scores": "Stored actions scored again by the same coach, as they were "
    "or with one thing changed: one row per scoring.",
    "COLUMN audit.experiment_scores.change": "What was changed; as it was and again are the plain "
    "scorings that the others are compared with.",
    "COLUMN audit.experiment_scores.put": "What was put in its place, e.g. another task type.",
    "COLUMN audit.experiment_scores.unseen": "The coach is given the same words as without the "
    "change, so it was not asked: its score is that of the action as it was.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    keys = ("change", "put", "coach", "model", "rubric_sha256")
    op.create_table(
        "experiment_score",
        sa.Column(
            "action_id",
            sa.Uuid(),
            sa.ForeignKey("mappa.action.id"),
            nullable=False,
            primary_key=True,
        ),
        *(sa.Column(name, sa.Text(), nullable=False, primary_key=True) for name in keys),
        sa.Column("model_version", sa.Text(), nullable=False),
        sa.Column("unseen", sa.Boolean(), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("unscored_reason", sa.Text()),
        sa.Column(
            "scored_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
        ),
        sa.CheckConstraint("score BETWEEN 0 AND 10", name="score_range"),
        sa.CheckConstraint(
            "(score IS NULL) = (unseen OR unscored_reason IS NOT NULL)", name="scored_or_why_not"
        ),
        schema="mappa",
    )
    op.execute(VIEW)
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute("GRANT SELECT ON audit.experiment_scores TO mappa_auditor")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP VIEW audit.experiment_scores")
    op.drop_table("experiment_score", schema="mappa")
