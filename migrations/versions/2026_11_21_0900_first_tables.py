"""The first tables: everything a run leaves behind, from the problem to the checkpoint.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Give up rather than stand in everybody's way behind a long transaction.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "artifact",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_artifact"),
        schema="mappa",
    )

    op.create_table(
        "problem",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("dataset", sa.Text(), nullable=False),
        sa.Column("task_type", sa.Text(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_problem"),
        schema="mappa",
    )

    op.create_table(
        "run",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("config", postgresql.JSONB(), nullable=False),
        sa.Column("code_version", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("sandbox_tier", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text()),
        sa.Column("prefect_flow_run_id", sa.Text()),
        sa.Column("mlflow_run_id", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        schema="mappa",
    )
    op.create_index("ix_run_name", "run", ["name"], schema="mappa")
    op.create_index("ix_run_started_at", "run", ["started_at"], schema="mappa")

    op.create_table(
        "episode",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Uuid(), nullable=False),
        sa.Column("rollout_index", sa.Integer(), nullable=False),
        sa.Column(
            "opened_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("closed_at", sa.DateTime(timezone=True)),
        sa.Column("stop_reason", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.ForeignKeyConstraint(["problem_id"], ["mappa.problem.id"], name="fk_episode_problem_id"),
        sa.ForeignKeyConstraint(["run_id"], ["mappa.run.id"], name="fk_episode_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_episode"),
        sa.UniqueConstraint(
            "run_id",
            "phase",
            "iteration",
            "problem_id",
            "rollout_index",
            name="uq_episode_run_id_phase_iteration_problem_id_rollout_index",
        ),
        schema="mappa",
    )
    op.create_index("ix_episode_problem_id", "episode", ["problem_id"], schema="mappa")

    op.create_table(
        "policy_version",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("adapter_uri", sa.Text()),
        sa.ForeignKeyConstraint(["run_id"], ["mappa.run.id"], name="fk_policy_version_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_policy_version"),
        sa.UniqueConstraint("run_id", "agent", "step", name="uq_policy_version_run_id_agent_step"),
        schema="mappa",
    )

    op.create_table(
        "action",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("episode_id", sa.Uuid(), nullable=False),
        sa.Column("turn_index", sa.Integer(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("messages", postgresql.JSONB(), nullable=False),
        sa.Column("prompt_token_ids", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("token_ids", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("logprobs", postgresql.ARRAY(sa.Double()), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("policy_version_id", sa.Uuid(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "cardinality(token_ids) = cardinality(logprobs)",
            name=op.f("ck_action_logprob_per_token"),
        ),
        sa.ForeignKeyConstraint(["episode_id"], ["mappa.episode.id"], name="fk_action_episode_id"),
        sa.ForeignKeyConstraint(
            ["policy_version_id"], ["mappa.policy_version.id"], name="fk_action_policy_version_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_action"),
        sa.UniqueConstraint("episode_id", "turn_index", name="uq_action_episode_id_turn_index"),
        schema="mappa",
    )
    op.create_index("ix_action_policy_version_id", "action", ["policy_version_id"], schema="mappa")

    op.create_table(
        "checkpoint",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("policy_version_id", sa.Uuid(), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("registered_model", sa.Text()),
        sa.Column("model_version", sa.Text()),
        sa.Column(
            "saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["policy_version_id"],
            ["mappa.policy_version.id"],
            name="fk_checkpoint_policy_version_id",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoint"),
        sa.UniqueConstraint("policy_version_id", name="uq_checkpoint_policy_version_id"),
        schema="mappa",
    )

    op.create_table(
        "outcome",
        sa.Column("episode_id", sa.Uuid(), nullable=False),
        sa.Column("success", sa.Boolean(), nullable=False),
        sa.Column("answer", sa.Text()),
        sa.Column("method", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["mappa.episode.id"], name="fk_outcome_episode_id"),
        sa.PrimaryKeyConstraint("episode_id", name="pk_outcome"),
        schema="mappa",
    )

    op.create_table(
        "update",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("from_policy_id", sa.Uuid(), nullable=False),
        sa.Column("to_policy_id", sa.Uuid(), nullable=False),
        sa.Column("metrics", postgresql.JSONB(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["from_policy_id"], ["mappa.policy_version.id"], name="fk_update_from_policy_id"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["mappa.run.id"], name="fk_update_run_id"),
        sa.ForeignKeyConstraint(
            ["to_policy_id"], ["mappa.policy_version.id"], name="fk_update_to_policy_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_update"),
        sa.UniqueConstraint(
            "run_id", "agent", "iteration", name="uq_update_run_id_agent_iteration"
        ),
        schema="mappa",
    )

    op.create_table(
        "coach_score",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("action_id", sa.Uuid(), nullable=False),
        sa.Column("coach", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("model_version", sa.Text(), nullable=False),
        sa.Column("rubric_version", sa.Text(), nullable=False),
        sa.Column("rubric_sha256", sa.Text(), nullable=False),
        sa.Column("repeat_index", sa.Integer(), nullable=False),
        sa.Column("label_visible", sa.Boolean(), nullable=False),
        sa.Column("trained", sa.Boolean(), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("rationale", sa.Text()),
        sa.Column("unscored_reason", sa.Text()),
        sa.Column("unscored_detail", sa.Text()),
        sa.Column("raw_reply", sa.Text()),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("reply_tokens", sa.Integer()),
        sa.Column("cost_usd", sa.Double()),
        sa.Column(
            "scored_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint(
            "CASE WHEN score IS NULL THEN unscored_reason IS NOT NULL AND unscored_detail "
            "IS NOT NULL ELSE unscored_reason IS NULL AND rationale IS NOT NULL END",
            name=op.f("ck_coach_score_scored_or_why_not"),
        ),
        sa.CheckConstraint("score BETWEEN 0 AND 10", name=op.f("ck_coach_score_score_range")),
        sa.ForeignKeyConstraint(
            ["action_id"], ["mappa.action.id"], name="fk_coach_score_action_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_coach_score"),
        schema="mappa",
    )
    op.create_index("ix_coach_score_action_id", "coach_score", ["action_id"], schema="mappa")
    op.create_index(
        "uq_coach_score_trained",
        "coach_score",
        ["action_id"],
        unique=True,
        schema="mappa",
        postgresql_where="trained",
    )

    op.create_table(
        "tool_result",
        sa.Column("action_id", sa.Uuid(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("stdout", sa.Text(), nullable=False),
        sa.Column("stderr", sa.Text(), nullable=False),
        sa.Column("stdout_omitted_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stderr_omitted_bytes", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("cpu_seconds", sa.Double()),
        sa.Column("peak_memory_bytes", sa.BigInteger()),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("rejected", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["action_id"], ["mappa.action.id"], name="fk_tool_result_action_id"
        ),
        sa.PrimaryKeyConstraint("action_id", name="pk_tool_result"),
        schema="mappa",
    )

    op.create_table(
        "artifact_use",
        sa.Column("action_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("use", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.CheckConstraint("use IN ('written', 'read')", name=op.f("ck_artifact_use_use")),
        sa.ForeignKeyConstraint(
            ["action_id"], ["mappa.tool_result.action_id"], name="fk_artifact_use_action_id"
        ),
        sa.ForeignKeyConstraint(
            ["sha256"], ["mappa.artifact.sha256"], name="fk_artifact_use_sha256"
        ),
        sa.PrimaryKeyConstraint("action_id", "position", name="pk_artifact_use"),
        schema="mappa",
    )
    op.create_index("ix_artifact_use_sha256", "artifact_use", ["sha256"], schema="mappa")

    op.create_table(
        "update_action",
        sa.Column("update_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("action_id", sa.Uuid(), nullable=False),
        sa.Column("score_id", sa.Uuid()),
        sa.Column("advantage", sa.Double()),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("left_out", sa.Text()),
        sa.CheckConstraint(
            "(advantage IS NULL) = (left_out IS NOT NULL)",
            name=op.f("ck_update_action_counts_or_why_not"),
        ),
        sa.ForeignKeyConstraint(
            ["action_id"], ["mappa.action.id"], name="fk_update_action_action_id"
        ),
        sa.ForeignKeyConstraint(
            ["score_id"], ["mappa.coach_score.id"], name="fk_update_action_score_id"
        ),
        sa.ForeignKeyConstraint(
            ["update_id"], ["mappa.update.id"], name="fk_update_action_update_id"
        ),
        sa.PrimaryKeyConstraint("update_id", "position", name="pk_update_action"),
        sa.UniqueConstraint("update_id", "action_id", name="uq_update_action_update_id_action_id"),
        schema="mappa",
    )
    op.create_index("ix_update_action_action_id", "update_action", ["action_id"], schema="mappa")
    op.create_index("ix_update_action_score_id", "update_action", ["score_id"], schema="mappa")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in (
        "update_action",
        "artifact_use",
        "tool_result",
        "coach_score",
        "update",
        "outcome",
        "checkpoint",
        "action",
        "policy_version",
        "episode",
        "run",
        "problem",
        "artifact",
    ):
        op.drop_table(table, schema="mappa")
