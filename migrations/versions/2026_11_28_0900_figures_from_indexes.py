"""Indexes hold what an iteration's figures sum: counts of tokens, seconds, dollars.

Why: at a million actions the page of a run read wide rows for small columns, most of a second.

Revision ID: 0019
Revises: 0018
"""

from typing import NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


class _Key(NamedTuple):
    """A constraint whose index carries further columns."""

    table: str
    name: str
    columns: str


ACTION = _Key("action", "uq_action_episode_id_turn_index", "UNIQUE (episode_id, turn_index)")
TOOL_RESULT = _Key("tool_result", "pk_tool_result", "PRIMARY KEY (action_id)")
TRAIL = "fk_artifact_use_action_id"
"""It needs the primary key of `tool_result`."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    counted = sa.Computed("cardinality(token_ids)", persisted=True)
    op.add_column(
        "action", sa.Column("tokens", sa.Integer(), counted, nullable=False), schema="mappa"
    )
    _carry(ACTION, ["id", "agent", "tokens", "seconds"])
    _carry_in_tool_result(["seconds"])
    _index_scores(["coach_id", "score", "trained", "seconds", "cost_usd"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _index_scores(["coach_id", "score", "trained"])
    _carry_in_tool_result([])
    _carry(ACTION, ["id", "agent"])
    op.drop_column("action", "tokens", schema="mappa")


def _carry_in_tool_result(columns: list[str]) -> None:
    op.drop_constraint(TRAIL, "artifact_use", schema="mappa")
    _carry(TOOL_RESULT, columns)
    op.create_foreign_key(
        TRAIL,
        "artifact_use",
        "tool_result",
        ["action_id"],
        ["action_id"],
        source_schema="mappa",
        referent_schema="mappa",
    )


def _carry(key: _Key, columns: list[str]) -> None:
    """Make a constraint anew, whose index carries these columns along."""
    carried = f" INCLUDE ({', '.join(columns)})" if columns else ""
    op.execute(f"ALTER TABLE mappa.{key.table} DROP CONSTRAINT {key.name}")
    op.execute(f"ALTER TABLE mappa.{key.table} ADD CONSTRAINT {key.name} {key.columns}{carried}")


def _index_scores(carried: list[str]) -> None:
    name = "ix_coach_score_action_id"
    op.drop_index(name, "coach_score", schema="mappa")
    op.create_index(name, "coach_score", ["action_id"], schema="mappa", postgresql_include=carried)
