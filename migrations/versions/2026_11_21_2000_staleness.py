"""How stale each action was when it was learnt from, for people who query.

Derived: update k starts from the policies of k - 1 updates, and every action names its policy.

Revision ID: 0011
Revises: 0010
"""

from types import ModuleType

from alembic import context, op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LAST_COLUMN = "    checkpoint.model_version\n"
STALENESS = "    checkpoint.model_version,\n    learned.iteration - 1 - policy.step AS staleness\n"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    view: str = _views().ACTION_SCORES
    op.execute(view.replace("CREATE", "CREATE OR REPLACE", 1).replace(LAST_COLUMN, STALENESS, 1))
    op.execute(
        "COMMENT ON COLUMN audit.action_scores.staleness IS 'By how many updates the weights that "
        "sampled it were older than those that learnt from it: 0, or 1 one step off; null where "
        "no update looked at it.'"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # A view cannot lose a column, and others are made from this one.
    for dependent in ("score_outcome", "unscored", "action_scores"):
        op.execute(f"DROP VIEW audit.{dependent}")
    earliest = context.script.get_revision("0002").module
    for statement in (_views().ACTION_SCORES, earliest.UNSCORED, earliest.SCORE_OUTCOME):
        op.execute(statement)
    for target, comment in earliest.COMMENTS.items():
        if target.split()[1].split(".")[1] in ("action_scores", "unscored", "score_outcome"):
            op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute("GRANT SELECT ON ALL TABLES IN SCHEMA audit TO mappa_auditor")


def _views() -> ModuleType:
    """The revision that wrote the view as it was."""
    return context.script.get_revision("0003").module
