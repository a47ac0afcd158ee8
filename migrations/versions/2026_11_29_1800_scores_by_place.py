"""A score names its action's place, the episode and the turn, and is found by it.

Why: an action's id is a hash, so a run's scores were looked up all over an index of ids. In the
order of places they are side by side. Every stored score is rewritten.

Revision ID: 0020
Revises: 0019
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

PLACE = ["episode_id", "turn_index"]
CARRIED = ["coach_id", "score", "trained", "seconds", "cost_usd"]
BY_ACTION = "ix_coach_score_action_id"
BY_PLACE = "ix_coach_score_episode_id_turn_index"

JOINED_BY_ID = "JOIN mappa.action ON action.id = score.action_id\n"
JOINED_BY_PLACE = """JOIN mappa.action
    ON (action.episode_id, action.turn_index) = (score.episode_id, score.turn_index)
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # All locks come first: who waits for one of them then holds no other that this needs.
    op.execute("LOCK TABLE mappa.action IN SHARE ROW EXCLUSIVE MODE")
    for column in (sa.Column("episode_id", sa.Uuid()), sa.Column("turn_index", sa.Integer())):
        op.add_column("coach_score", column, schema="mappa")
    _join(JOINED_BY_PLACE)
    # Each rewritten row would be put into this index too.
    op.drop_index(BY_ACTION, "coach_score", schema="mappa")
    op.execute(
        "UPDATE mappa.coach_score AS score "
        "SET episode_id = action.episode_id, turn_index = action.turn_index "
        "FROM mappa.action WHERE action.id = score.action_id"
    )
    for name in PLACE:
        op.alter_column("coach_score", name, nullable=False, schema="mappa")
    op.create_foreign_key(
        "fk_coach_score_episode_id",
        "coach_score",
        "action",
        PLACE,
        PLACE,
        source_schema="mappa",
        referent_schema="mappa",
    )
    op.create_index(BY_PLACE, "coach_score", PLACE, schema="mappa", postgresql_include=CARRIED)
    op.create_index(BY_ACTION, "coach_score", ["action_id"], schema="mappa")
    # Until there are statistics Postgres expects thousands of scores for each episode.
    op.execute("ANALYZE mappa.coach_score")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _join(JOINED_BY_ID)
    op.drop_index(BY_ACTION, "coach_score", schema="mappa")
    for name in PLACE:
        # Their index and their constraint go with them.
        op.drop_column("coach_score", name, schema="mappa")
    op.create_index(
        BY_ACTION, "coach_score", ["action_id"], schema="mappa", postgresql_include=CARRIED
    )


def _join(joined: str) -> None:
    """Make the views of all scores anew, with actions joined like this."""
    views, stale = (context.script.get_revision(number).module for number in ("0003", "0011"))
    scores = views.ACTION_SCORES.replace(stale.LAST_COLUMN, stale.STALENESS, 1)
    for view in (scores, views.COACH_BIAS):
        replaced = view.replace("CREATE", "CREATE OR REPLACE", 1)
        op.execute(replaced.replace(JOINED_BY_ID, joined, 1))
