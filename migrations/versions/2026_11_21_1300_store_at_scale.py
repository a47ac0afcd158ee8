"""A million actions: coaches once, float32 log-probs, indices the audit reads alone, file trail.

Why: who scored with what was spelled out in every score (some 150 bytes a row); log-probs are
float32 where they are computed; and the audit's queries read wide rows for two small columns.

Revision ID: 0003
Revises: 0002
"""

from collections.abc import Iterable
from types import ModuleType
from uuid import UUID, uuid5

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAMESPACE = UUID("6d617070-6100-5000-8000-636f61636865")
IDENTITY = ("coach", "model", "model_version", "rubric_version", "rubric_sha256")

FILE_TRAIL = """
CREATE VIEW audit.file_trail AS
SELECT
    run.id AS run_id,
    run.name AS run,
    run.team,
    episode.phase,
    episode.iteration,
    episode.id AS episode_id,
    problem.task_type,
    action.id AS action_id,
    action.turn_index,
    action.agent,
    trail.use,
    trail.name,
    artifact.size_bytes,
    artifact.sha256,
    tool.status AS tool_status,
    outcome.success
FROM mappa.artifact_use AS trail
JOIN mappa.artifact ON artifact.sha256 = trail.sha256
JOIN mappa.tool_result AS tool ON tool.action_id = trail.action_id
JOIN mappa.action ON action.id = trail.action_id
JOIN mappa.episode ON episode.id = action.episode_id
JOIN mappa.run ON run.id = episode.run_id
JOIN mappa.problem ON problem.id = episode.problem_id
LEFT JOIN mappa.outcome ON outcome.episode_id = episode.id
"""

# Grouped by keys, so that Postgres compares 16 bytes instead of every word of an identity.
COACH_BIAS = """
CREATE VIEW audit.coach_bias AS
SELECT
    run.id AS run_id,
    run.name AS run,
    episode.phase,
    episode.iteration,
    coach.coach,
    coach.model AS coach_model,
    coach.model_version AS coach_model_version,
    coach.rubric_version,
    action.agent,
    problem.task_type,
    count(score.score) AS n,
    avg(score.score) AS mean_score,
    stddev_samp(score.score) AS sd_score
FROM mappa.coach_score AS score
JOIN mappa.coach ON coach.id = score.coach_id
JOIN mappa.action ON action.id = score.action_id
JOIN mappa.episode ON episode.id = action.episode_id
JOIN mappa.run ON run.id = episode.run_id
JOIN mappa.problem ON problem.id = episode.problem_id
GROUP BY run.id, episode.phase, episode.iteration, coach.id, action.agent, problem.task_type
"""

ACTION_SCORES = """
CREATE VIEW audit.action_scores AS
SELECT
    run.id AS run_id,
    run.name AS run,
    run.team,
    episode.phase,
    episode.iteration,
    episode.id AS episode_id,
    episode.rollout_index,
    episode.stop_reason,
    problem.id AS problem_id,
    problem.dataset,
    problem.task_type,
    problem.level,
    problem.statement AS problem,
    action.id AS action_id,
    action.turn_index,
    action.agent,
    policy.step AS policy_step,
    cardinality(action.prompt_token_ids) AS prompt_tokens,
    cardinality(action.token_ids) AS sampled_tokens,
    action.finish_reason,
    action.text,
    action.started_at,
    action.seconds AS action_seconds,
    tool.status AS tool_status,
    tool.exit_code AS tool_exit_code,
    tool.seconds AS tool_seconds,
    score.id AS score_id,
    coach.coach,
    coach.model AS coach_model,
    coach.model_version AS coach_model_version,
    coach.rubric_version,
    coach.rubric_sha256,
    score.repeat_index,
    score.label_visible,
    score.trained,
    score.score,
    score.rationale,
    score.unscored_reason,
    score.unscored_detail,
    score.seconds AS coach_seconds,
    score.cost_usd AS coach_cost_usd,
    score.scored_at,
    outcome.success,
    outcome.answer,
    learned.id AS update_id,
    entry.advantage,
    entry.weight,
    entry.left_out,
    checkpoint.id AS checkpoint_id,
    checkpoint.registered_model,
    checkpoint.model_version
FROM mappa.coach_score AS score
JOIN mappa.coach ON coach.id = score.coach_id
JOIN mappa.action ON action.id = score.action_id
JOIN mappa.policy_version AS policy ON policy.id = action.policy_version_id
JOIN mappa.episode ON episode.id = action.episode_id
JOIN mappa.run ON run.id = episode.run_id
JOIN mappa.problem ON problem.id = episode.problem_id
LEFT JOIN mappa.outcome ON outcome.episode_id = episode.id
LEFT JOIN mappa.tool_result AS tool ON tool.action_id = action.id
LEFT JOIN mappa.update_action AS entry ON entry.action_id = action.id AND score.trained
LEFT JOIN mappa.update AS learned ON learned.id = entry.update_id
LEFT JOIN mappa.checkpoint ON checkpoint.policy_version_id = learned.to_policy_id
"""

COMMENTS = {
    "VIEW audit.file_trail": "One row per file that the code of a turn wrote or read.",
    "COLUMN audit.file_trail.use": "written or read.",
    "COLUMN audit.file_trail.sha256": "Of the content: one file under two names has one hash.",
    "COLUMN audit.file_trail.turn_index": "Who did it: the turn, and its agent beside it.",
    "COLUMN audit.file_trail.tool_status": "How the code of that turn ended.",
    "COLUMN audit.file_trail.success": "The truth about the episode; null where it failed.",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _drop_views()
    _name_coaches_once()
    op.execute("ALTER TABLE mappa.action ALTER COLUMN logprobs TYPE real[]")
    _cover("action", "uq_action_episode_id_turn_index", "episode_id, turn_index", "id, agent")
    op.drop_index("ix_coach_score_action_id", "coach_score", schema="mappa")
    op.create_index(
        "ix_coach_score_action_id",
        "coach_score",
        ["action_id"],
        schema="mappa",
        postgresql_include=["coach_id", "score", "trained"],
    )
    _create_views(
        _earlier().VIEWS | {"action_scores": ACTION_SCORES, "coach_bias": COACH_BIAS},
        _earlier().COMMENTS | COMMENTS,
        FILE_TRAIL,
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP VIEW audit.file_trail")
    _drop_views()
    op.drop_index("ix_coach_score_action_id", "coach_score", schema="mappa")
    _spell_coaches_out()
    op.execute("ALTER TABLE mappa.action ALTER COLUMN logprobs TYPE double precision[]")
    _cover("action", "uq_action_episode_id_turn_index", "episode_id, turn_index", None)
    op.create_index("ix_coach_score_action_id", "coach_score", ["action_id"], schema="mappa")
    _create_views(_earlier().VIEWS, _earlier().COMMENTS)


def _earlier() -> ModuleType:
    """The revision whose views these replace."""
    return context.script.get_revision("0002").module


def _drop_views() -> None:
    for view in reversed(_earlier().VIEWS):
        op.execute(f"DROP VIEW audit.{view}")


def _create_views(views: dict[str, str], comments: dict[str, str], *more: str) -> None:
    for statement in (*views.values(), *more):
        op.execute(statement)
    for target, comment in comments.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute("GRANT SELECT ON ALL TABLES IN SCHEMA audit TO mappa_auditor")


def _cover(table: str, constraint: str, columns: str, include: str | None) -> None:
    """Make a unique constraint anew, with columns that its index carries along."""
    op.execute(f"ALTER TABLE mappa.{table} DROP CONSTRAINT {constraint}")
    carried = f" INCLUDE ({include})" if include else ""
    op.execute(f"ALTER TABLE mappa.{table} ADD CONSTRAINT {constraint} UNIQUE ({columns}){carried}")


def _name_coaches_once() -> None:
    op.create_table(
        "coach",
        sa.Column("id", sa.Uuid(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in IDENTITY),
        sa.PrimaryKeyConstraint("id", name="pk_coach"),
        schema="mappa",
    )
    op.add_column("coach_score", sa.Column("coach_id", sa.Uuid()), schema="mappa")
    connection = op.get_bind()
    same = " AND ".join(f"{name} = :{name}" for name in IDENTITY)
    names = ", ".join(IDENTITY)
    found = connection.execute(sa.text(f"SELECT DISTINCT {names} FROM mappa.coach_score"))
    for row in found.mappings().all():
        values = {"id": _coach_id(row[name] for name in IDENTITY), **row}
        marks = ", ".join(f":{name}" for name in values)
        connection.execute(sa.text(f"INSERT INTO mappa.coach VALUES ({marks})"), values)
        connection.execute(
            sa.text(f"UPDATE mappa.coach_score SET coach_id = :id WHERE {same}"), values
        )
    op.alter_column("coach_score", "coach_id", nullable=False, schema="mappa")
    op.create_foreign_key(
        "fk_coach_score_coach_id",
        "coach_score",
        "coach",
        ["coach_id"],
        ["id"],
        source_schema="mappa",
        referent_schema="mappa",
    )
    for name in IDENTITY:
        op.drop_column("coach_score", name, schema="mappa")


def _spell_coaches_out() -> None:
    for name in IDENTITY:
        op.add_column("coach_score", sa.Column(name, sa.Text()), schema="mappa")
    assignments = ", ".join(f"{name} = coach.{name}" for name in IDENTITY)
    op.execute(
        f"UPDATE mappa.coach_score SET {assignments} FROM mappa.coach WHERE coach.id = coach_id"
    )
    for name in IDENTITY:
        op.alter_column("coach_score", name, nullable=False, schema="mappa")
    op.drop_column("coach_score", "coach_id", schema="mappa")
    op.drop_table("coach", schema="mappa")


def _coach_id(parts: Iterable[str]) -> UUID:
    """As `core.ids.content_id` had it on the day of this revision."""
    name = "".join(f"{len(text)}:{text};" for text in ("coach", *parts))
    return uuid5(NAMESPACE, name.encode("utf-8", "surrogatepass").decode("latin-1"))
