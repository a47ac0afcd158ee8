"""What advantages are relative to, by estimator; a correction outlives the run it comes from.

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

COMMENTS = {
    "COLUMN audit.runs.baseline": "What an action is compared with: group (others of its problem) "
    "or none (the whole batch).",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_constraint("fk_correction_run_id", "correction", schema="mappa")
    op.execute(RUNS)
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for target in COMMENTS:
        op.execute(f"COMMENT ON {target} IS NULL")
    # Rows of runs that are not here were no error until now.
    op.execute(
        "ALTER TABLE mappa.correction ADD CONSTRAINT fk_correction_run_id "
        "FOREIGN KEY (run_id) REFERENCES mappa.run (id) NOT VALID"
    )
    _replace(context.script.get_revision("0006").module.VIEWS["runs"])


def _replace(view: str) -> None:
    op.execute(view.replace("CREATE", "CREATE OR REPLACE", 1))
