"""Which problems a run draws from, and held-out results for people who query.

Runs that are there already have no manifest: what they played is in their episodes.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

EVALUATIONS = """
CREATE VIEW audit.evaluations AS
SELECT
    run.id AS run_id,
    run.name AS run,
    episode.iteration AS step,
    problem.id AS problem_id,
    problem.dataset,
    problem.task_type,
    count(*) AS samples,
    count(*) FILTER (WHERE outcome.success) AS successes,
    count(*) FILTER (WHERE outcome.episode_id IS NULL) AS failed,
    count(*) FILTER (
        WHERE CASE WHEN outcome.metric IS NULL THEN outcome.answer IS NULL
              ELSE outcome.value IS NULL END AND outcome.episode_id IS NOT NULL
    ) AS invalid,
    min(outcome.metric) AS metric,
    avg(outcome.value) AS mean_value,
    avg(outcome.charged) AS mean_charged,
    CASE WHEN min(outcome.metric) IS NOT NULL THEN avg(coalesce(outcome.skill, 0)) END
        AS mean_skill
FROM mappa.episode
JOIN mappa.run ON run.id = episode.run_id
JOIN mappa.problem ON problem.id = episode.problem_id
LEFT JOIN mappa.outcome ON outcome.episode_id = episode.id
WHERE episode.phase = 'held_out' AND episode.stop_reason IS NOT NULL
GROUP BY run.id, episode.iteration, problem.id
"""

MANIFESTS = """
CREATE VIEW audit.manifests AS
SELECT
    run.id AS run_id,
    run.name AS run,
    listed.split,
    listed.position,
    problem.id AS problem_id,
    problem.dataset,
    problem.task_type,
    problem.level,
    problem.statement
FROM mappa.run_problem AS listed
JOIN mappa.run ON run.id = listed.run_id
JOIN mappa.problem ON problem.id = listed.problem_id
"""

VIEWS = {"evaluations": EVALUATIONS, "manifests": MANIFESTS}
COMMENTS = {
    "VIEW audit.evaluations": "Held-out results: one row per run, policy step and problem.",
    "COLUMN audit.evaluations.step": "Updates the policies had had.",
    "COLUMN audit.evaluations.failed": "Samples that something outside ended; no success.",
    "COLUMN audit.evaluations.invalid": "Samples that handed in nothing that can be measured.",
    "COLUMN audit.evaluations.mean_value": "Of the valid samples alone, in the unit of the metric.",
    "COLUMN audit.evaluations.mean_charged": "Of all samples that ended: an invalid one counts as "
    "the best constant prediction.",
    "COLUMN audit.evaluations.mean_skill": "Of all samples, in [0, 1]; a failure counts 0.",
    "VIEW audit.manifests": "Which problems a run trains on and is measured on, in order.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    run, problem = sa.ForeignKey("mappa.run.id"), sa.ForeignKey("mappa.problem.id")
    op.create_table(
        "run_problem",
        sa.Column("run_id", sa.Uuid(), run, nullable=False, primary_key=True),
        sa.Column("split", sa.Text(), primary_key=True),
        sa.Column("position", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("problem_id", sa.Uuid(), problem, nullable=False),
        sa.CheckConstraint("split IN ('train', 'held_out')", name="split"),
        schema="mappa",
    )
    op.create_index("ix_run_problem_problem_id", "run_problem", ["problem_id"], schema="mappa")
    for view, statement in VIEWS.items():
        op.execute(statement)
        op.execute(f"GRANT SELECT ON audit.{view} TO mappa_auditor")
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for view in reversed(VIEWS):
        op.execute(f"DROP VIEW audit.{view}")
    op.drop_table("run_problem", schema="mappa")
