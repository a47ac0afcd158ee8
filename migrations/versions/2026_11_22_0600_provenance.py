"""What advantages are relative to; corrections without their run; absences that were made good.

Revision ID: 0012
Revises: 0011
"""

from alembic import context, op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# Runs of the first versions spell it out; where neither key is there, the run does not say.
RUNS = """
CREATE OR REPLACE VIEW audit.runs AS
SELECT
    id AS run_id, name AS run, team, status, seed, code_version, started_at, ended_at,
    coalesce(
        config -> 'algorithm' ->> 'baseline',
        CASE
            WHEN config -> 'algorithm' ->> 'estimator' IN ('reinforce++', 'reinforce') THEN 'none'
            WHEN config -> 'algorithm' ->> 'estimator' IS NOT NULL THEN 'group'
        END
    ) AS baseline
FROM mappa.run
"""

# A coach that is asked again leaves its earlier absence as a row; counted once, as it ended.
UNSCORED = """
CREATE OR REPLACE VIEW audit.unscored AS
SELECT
    run_id, run, phase, iteration,
    coach, coach_model, coach_model_version, rubric_version,
    agent, task_type, unscored_reason,
    count(*) AS n,
    count(*)::float8 / max(asked) AS share
FROM (
    SELECT
        *,
        count(*) OVER (
            PARTITION BY
                run_id, phase, iteration,
                coach, coach_model, coach_model_version, rubric_version,
                agent, task_type
        ) AS asked
    FROM audit.action_scores AS given
    WHERE given.score IS NOT NULL OR NOT EXISTS (
        SELECT
        FROM mappa.coach_score AS absent
        JOIN mappa.coach_score AS other
            ON (other.action_id, other.coach_id, other.repeat_index)
            = (absent.action_id, absent.coach_id, absent.repeat_index)
        WHERE absent.id = given.score_id AND (
            other.score IS NOT NULL
            OR (other.scored_at, other.id) > (absent.scored_at, absent.id)
        )
    )
) AS scores
WHERE unscored_reason IS NOT NULL
GROUP BY
    run_id, run, phase, iteration,
    coach, coach_model, coach_model_version, rubric_version,
    agent, task_type, unscored_reason
"""

COMMENTS = {
    "COLUMN audit.runs.baseline": "What an action is compared with: group (others of its problem) "
    "or none (the whole batch).",
    "VIEW audit.unscored": "How often each coach gave no score in the end, by reason.",
    "COLUMN audit.unscored.share": "Of all scores it was asked for in that group, with repeats.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_constraint("fk_correction_run_id", "correction", schema="mappa")
    for view in (RUNS, UNSCORED):
        op.execute(view)
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("COMMENT ON COLUMN audit.runs.baseline IS NULL")
    # Rows of runs that are not here were no error until now.
    op.execute(
        "ALTER TABLE mappa.correction ADD CONSTRAINT fk_correction_run_id "
        "FOREIGN KEY (run_id) REFERENCES mappa.run (id) NOT VALID"
    )
    earliest, audits = (context.script.get_revision(name).module for name in ("0002", "0006"))
    for view in (earliest.UNSCORED, audits.VIEWS["runs"]):
        op.execute(view.replace("CREATE", "CREATE OR REPLACE", 1))
    for target in ("VIEW audit.unscored", "COLUMN audit.unscored.share"):
        op.execute(f"COMMENT ON {target} IS '{earliest.COMMENTS[target]}'")
