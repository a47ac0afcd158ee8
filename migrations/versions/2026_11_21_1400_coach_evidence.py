"""What a coach was asked, what it said beside the score, and what it was allowed to know.

A score that nobody can trace to its prompt is no evidence: each row now has the request word for
word, the attempts it took, marks, blame and correction, what the coach might know of the truth, and
the attempts to influence it that its reader saw. Older rows stay valid: they were given by the rule
coach in one attempt, without a request, knowing nothing.

Revision ID: 0004
Revises: 0003
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS: tuple[tuple[str, TypeEngine[Any], str | None], ...] = (
    ("visibility", sa.Text(), "never"),
    ("criteria", postgresql.JSONB(), None),
    ("blamed", sa.Text(), None),
    ("correction", sa.Text(), None),
    ("request", postgresql.JSONB(), None),
    ("answered_version", sa.Text(), None),
    ("attempts", sa.Integer(), "1"),
    ("cached_tokens", sa.Integer(), None),
    ("thought_tokens", sa.Integer(), None),
    ("flags", postgresql.JSONB(), None),
)
"""Name, type and the value of older rows; null where they have none."""

COACH_REQUESTS = """
CREATE VIEW audit.coach_requests AS
SELECT
    score.id AS score_id,
    score.action_id,
    episode.run_id,
    action.agent,
    coach.coach,
    coach.model AS coach_model,
    coach.model_version AS coach_model_version,
    coach.rubric_version,
    coach.rubric_sha256,
    score.repeat_index,
    score.visibility,
    score.score,
    score.unscored_reason,
    score.criteria,
    score.blamed,
    score.correction,
    coalesce(score.flags, '[]'::jsonb) AS flags,
    score.request ->> 'system' AS system,
    score.request ->> 'prompt' AS prompt,
    score.request -> 'settings' AS settings,
    score.raw_reply AS reply,
    score.attempts,
    score.prompt_tokens,
    score.cached_tokens,
    score.reply_tokens,
    score.thought_tokens,
    score.cost_usd,
    score.seconds,
    score.scored_at
FROM mappa.coach_score AS score
JOIN mappa.coach ON coach.id = score.coach_id
JOIN mappa.action ON action.id = score.action_id
JOIN mappa.episode ON episode.id = action.episode_id
"""

COMMENTS = {
    "VIEW audit.coach_requests": "One row per score: what the coach was asked and answered word "
    "for word, and what it took; joins audit.action_scores by score_id.",
    "COLUMN audit.coach_requests.visibility": "What the coach was allowed to know of the truth: "
    "never, outcome_only or full.",
    "COLUMN audit.coach_requests.flags": "Signs in the agents'' text of attempts to influence the "
    "coach, by kind.",
    "COLUMN audit.coach_requests.attempts": "Calls made; 0 where the answer to an identical "
    "request was used.",
    "COLUMN audit.coach_requests.system": "Instructions and rubric; null for a coach that is no "
    "model.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name, kind, older in COLUMNS:
        column = sa.Column(name, kind, server_default=older, nullable=older is None)
        op.add_column("coach_score", column, schema="mappa")
    op.execute(COACH_REQUESTS)
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute("GRANT SELECT ON audit.coach_requests TO mappa_auditor")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP VIEW audit.coach_requests")
    for name, _, _ in reversed(COLUMNS):
        op.drop_column("coach_score", name, schema="mappa")
