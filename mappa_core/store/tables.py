"""The tables of the experiment store, in the Postgres schema `mappa`.

    run ─┬─ policy_version ── checkpoint
         ├─ episode ─┬─ outcome            problem ── episode
         │           └─ action ─┬─ tool_result ── artifact_use ── artifact
         │                      └─ coach_score (many; one trains) ── coach
         └─ update ── update_action ── action, coach_score

Append-only, but for the closing of a run and of an episode and the links to MLflow and Prefect.
SQL users read the views of the schema `audit`, never these.
"""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from mappa_core.store.text import AnyJson, AnyText, Float32s

SCHEMA = "mappa"

METADATA = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    },
)


def _id(name: str = "id") -> Column[object]:
    return Column(name, Uuid, primary_key=True)


def _reference(name: str, target: str, *, primary_key: bool = False) -> Column[object]:
    """A column that must name a row of `target`."""
    foreign = ForeignKey(f"{SCHEMA}.{target}")
    return Column(name, Uuid, foreign, nullable=False, primary_key=primary_key)


def _now(name: str) -> Column[datetime]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())


RUN = Table(
    "run",
    METADATA,
    _id(),
    Column("name", AnyText, nullable=False, index=True),
    Column("team", AnyText, nullable=False),
    Column("config", AnyJson, nullable=False),
    Column("code_version", AnyText, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("sandbox_tier", AnyText, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, index=True),
    Column("status", AnyText, nullable=False),
    Column("ended_at", DateTime(timezone=True)),
    Column("error", AnyText),
    Column("prefect_flow_run_id", AnyText),
    Column("mlflow_run_id", AnyText),
    Column("provenance", AnyJson),
)

POLICY_VERSION = Table(
    "policy_version",
    METADATA,
    _id(),
    _reference("run_id", "run.id"),
    Column("agent", AnyText, nullable=False),
    Column("step", Integer, nullable=False),
    Column("base_model", AnyText, nullable=False),
    Column("adapter_uri", AnyText),
    UniqueConstraint("run_id", "agent", "step"),
)

PROBLEM = Table(
    "problem",
    METADATA,
    _id(),
    Column("dataset", AnyText, nullable=False),
    Column("task_type", AnyText, nullable=False),
    Column("level", Integer, nullable=False),
    Column("statement", AnyText, nullable=False),
    Column("answer", AnyText, nullable=False),
    Column("attributes", AnyJson, nullable=False, server_default=text("'{}'::jsonb")),
)

RUN_PROBLEM = Table(
    "run_problem",
    METADATA,
    _reference("run_id", "run.id", primary_key=True),
    Column("split", AnyText, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _reference("problem_id", "problem.id"),
    CheckConstraint("split IN ('train', 'held_out')", name="split"),
    Index(None, "problem_id"),
)

EPISODE = Table(
    "episode",
    METADATA,
    _id(),
    _reference("run_id", "run.id"),
    Column("phase", AnyText, nullable=False),
    Column("iteration", Integer, nullable=False),
    _reference("problem_id", "problem.id"),
    Column("rollout_index", Integer, nullable=False),
    _now("opened_at"),
    Column("closed_at", DateTime(timezone=True)),
    Column("stop_reason", AnyText),
    Column("error", AnyText),
    # Also the index of every query for one iteration.
    UniqueConstraint("run_id", "phase", "iteration", "problem_id", "rollout_index"),
    Index(None, "problem_id"),
)

ACTION = Table(
    "action",
    METADATA,
    _id(),
    _reference("episode_id", "episode.id"),
    Column("turn_index", Integer, nullable=False),
    Column("agent", AnyText, nullable=False),
    Column("messages", AnyJson, nullable=False),
    Column("prompt_token_ids", ARRAY(Integer), nullable=False),
    Column("token_ids", ARRAY(Integer), nullable=False),
    Column("logprobs", Float32s, nullable=False),
    Column("text", AnyText, nullable=False),
    Column("finish_reason", AnyText, nullable=False),
    _reference("policy_version_id", "policy_version.id"),
    Column("temperature", Double, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("seconds", Double, nullable=False),
    Column("given", ARRAY(Integer)),
    Column("tokens", Integer, Computed("cardinality(token_ids)", persisted=True), nullable=False),
    # The rest of the row is wide: what is summed or grouped by is read from the index alone.
    UniqueConstraint(
        "episode_id", "turn_index", postgresql_include=["id", "agent", "tokens", "seconds"]
    ),
    CheckConstraint("cardinality(token_ids) = cardinality(logprobs)", name="logprob_per_token"),
    Index(None, "policy_version_id"),
)

TOOL_RESULT = Table(
    "tool_result",
    METADATA,
    _reference("action_id", "action.id"),
    Column("code", AnyText, nullable=False),
    Column("status", AnyText, nullable=False),
    Column("exit_code", Integer),
    Column("stdout", AnyText, nullable=False),
    Column("stderr", AnyText, nullable=False),
    Column("stdout_omitted_bytes", BigInteger, nullable=False),
    Column("stderr_omitted_bytes", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("cpu_seconds", Double),
    Column("peak_memory_bytes", BigInteger),
    Column("tier", AnyText, nullable=False),
    Column("rejected", AnyJson, nullable=False),
    Column("removed", AnyJson, nullable=False, server_default=text("'[]'::jsonb")),
    Column("reads_known", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("action_id", postgresql_include=["seconds"]),
)

ARTIFACT = Table(
    "artifact",
    METADATA,
    Column("sha256", AnyText, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
)

ARTIFACT_USE = Table(
    "artifact_use",
    METADATA,
    _reference("action_id", "tool_result.action_id", primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("use", AnyText, nullable=False),
    Column("name", AnyText, nullable=False),
    Column("sha256", AnyText, ForeignKey(ARTIFACT.c.sha256), nullable=False, index=True),
    CheckConstraint("use IN ('written', 'read')", name="use"),
)

COACH = Table(
    "coach",
    METADATA,
    _id(),
    Column("coach", AnyText, nullable=False),
    Column("model", AnyText, nullable=False),
    Column("model_version", AnyText, nullable=False),
    Column("rubric_version", AnyText, nullable=False),
    Column("rubric_sha256", AnyText, nullable=False),
)

COACH_SCORE = Table(
    "coach_score",
    METADATA,
    _id(),
    _reference("action_id", "action.id"),
    # Rows are joined by these two. An action's id is a hash: by it, the scores of one episode would
    # be looked up all over the index.
    Column("episode_id", Uuid, nullable=False),
    Column("turn_index", Integer, nullable=False),
    _reference("coach_id", "coach.id"),
    Column("repeat_index", Integer, nullable=False),
    Column("label_visible", Boolean, nullable=False),
    Column("trained", Boolean, nullable=False),
    Column("score", Double),
    Column("rationale", AnyText),
    Column("unscored_reason", AnyText),
    Column("unscored_detail", AnyText),
    Column("raw_reply", AnyText),
    Column("seconds", Double, nullable=False),
    Column("prompt_tokens", Integer),
    Column("reply_tokens", Integer),
    Column("cost_usd", Double),
    _now("scored_at"),
    Column("visibility", AnyText, nullable=False, server_default="never"),
    Column("criteria", AnyJson(none_as_null=True)),
    Column("blamed", AnyText),
    Column("correction", AnyText),
    Column("request", AnyJson(none_as_null=True)),
    Column("answered_version", AnyText),
    Column("attempts", Integer, nullable=False, server_default="1"),
    Column("cached_tokens", Integer),
    Column("thought_tokens", Integer),
    Column("flags", AnyJson(none_as_null=True)),
    CheckConstraint("score BETWEEN 0 AND 10", name="score_range"),
    CheckConstraint(
        "CASE WHEN score IS NULL THEN unscored_reason IS NOT NULL AND unscored_detail IS NOT NULL "
        "ELSE unscored_reason IS NULL AND rationale IS NOT NULL END",
        name="scored_or_why_not",
    ),
    # It also tells Postgres how many scores a join with `action` by these columns finds.
    ForeignKeyConstraint(["episode_id", "turn_index"], [ACTION.c.episode_id, ACTION.c.turn_index]),
    Index(
        None,
        "episode_id",
        "turn_index",
        postgresql_include=["coach_id", "score", "trained", "seconds", "cost_usd"],
    ),
    Index(None, "action_id"),
)

Index("uq_coach_score_trained", COACH_SCORE.c.action_id, unique=True, postgresql_where="trained")

OUTCOME = Table(
    "outcome",
    METADATA,
    _reference("episode_id", "episode.id", primary_key=True),
    Column("success", Boolean, nullable=False),
    Column("answer", AnyText),
    Column("method", AnyText, nullable=False),
    Column("metric", AnyText),
    Column("value", Double),
    Column("charged", Double),
    Column("skill", Double),
    Column("detail", AnyText),
    Column("figures", AnyJson),
    CheckConstraint("skill BETWEEN 0 AND 1", name="skill_range"),
)

CHECKPOINT = Table(
    "checkpoint",
    METADATA,
    _id(),
    _reference("policy_version_id", "policy_version.id"),
    Column("directory", AnyText, nullable=False),
    Column("sha256", AnyText, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("registered_model", AnyText),
    Column("model_version", AnyText),
    _now("saved_at"),
    UniqueConstraint("policy_version_id"),
)

UPDATE = Table(
    "update",
    METADATA,
    _id(),
    _reference("run_id", "run.id"),
    Column("agent", AnyText, nullable=False),
    Column("iteration", Integer, nullable=False),
    _reference("from_policy_id", "policy_version.id"),
    _reference("to_policy_id", "policy_version.id"),
    Column("metrics", AnyJson, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("skipped", AnyText),
    _now("updated_at"),
    UniqueConstraint("run_id", "agent", "iteration"),
)

UPDATE_ACTION = Table(
    "update_action",
    METADATA,
    _reference("update_id", "update.id", primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _reference("action_id", "action.id"),
    Column("score_id", Uuid, ForeignKey(COACH_SCORE.c.id), index=True),
    Column("advantage", Double),
    Column("weight", Double, nullable=False),
    Column("left_out", AnyText),
    UniqueConstraint("update_id", "action_id"),
    CheckConstraint("(advantage IS NULL) = (left_out IS NOT NULL)", name="counts_or_why_not"),
    Index(None, "action_id"),
)

AUDIT_FINDING = Table(
    "audit_finding",
    METADATA,
    _id(),
    _reference("run_id", "run.id"),
    Column("kind", AnyText, nullable=False),
    Column("subject", AnyText, nullable=False),
    Column("against", AnyText, nullable=False),
    Column("stratum", AnyText, nullable=False),
    Column("verdict", AnyText, nullable=False),
    Column("estimate", Double),
    Column("unit", AnyText, nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("p_value", Double),
    Column("margin", Double),
    Column("actions", Integer, nullable=False),
    Column("problems", Integer, nullable=False),
    Column("iteration", Integer),
    Column("sql", AnyText, nullable=False),
    Column("detail", AnyJson, nullable=False),
    _now("found_at"),
    Index(None, "run_id", "kind"),
)

HUMAN_LABEL = Table(
    "human_label",
    METADATA,
    _reference("action_id", "action.id", primary_key=True),
    Column("labeller", AnyText, primary_key=True),
    Column("score", Double, nullable=False),
    Column("note", AnyText, nullable=False),
    _now("labelled_at"),
    Column("picked", AnyText, nullable=False, server_default="random"),
    CheckConstraint("score BETWEEN 0 AND 10", name="score_range"),
)

ANCHOR = Table(
    "anchor",
    METADATA,
    _id(),
    _reference("run_id", "run.id"),
    _reference("action_id", "action.id"),
    Column("known_score", Double),
    UniqueConstraint("run_id", "action_id"),
    CheckConstraint("known_score BETWEEN 0 AND 10", name="score_range"),
)

ANCHOR_SCORE = Table(
    "anchor_score",
    METADATA,
    _reference("anchor_id", "anchor.id", primary_key=True),
    Column("iteration", Integer, primary_key=True, autoincrement=False),
    Column("repeat_index", Integer, primary_key=True, autoincrement=False),
    Column("score", Double),
    Column("unscored_reason", AnyText),
    Column("coach", AnyText, nullable=False),
    Column("model_version", AnyText, nullable=False),
    Column("rubric_sha256", AnyText, nullable=False),
    _now("scored_at"),
    CheckConstraint("score BETWEEN 0 AND 10", name="score_range"),
    CheckConstraint("(score IS NULL) = (unscored_reason IS NOT NULL)", name="scored_or_why_not"),
)

EXPERIMENT_SCORE = Table(
    "experiment_score",
    METADATA,
    _reference("action_id", "action.id", primary_key=True),
    Column("change", AnyText, primary_key=True),
    Column("put", AnyText, primary_key=True),
    Column("coach", AnyText, primary_key=True),
    Column("model", AnyText, primary_key=True),
    Column("rubric_sha256", AnyText, primary_key=True),
    Column("model_version", AnyText, nullable=False),
    Column("unseen", Boolean, nullable=False),
    Column("score", Double),
    Column("unscored_reason", AnyText),
    _now("scored_at"),
    CheckConstraint("score BETWEEN 0 AND 10", name="score_range"),
    CheckConstraint(
        "(score IS NULL) = (unseen OR unscored_reason IS NOT NULL)", name="scored_or_why_not"
    ),
)

CORRECTION = Table(
    "correction",
    METADATA,
    _id(),
    # Where it was estimated; runs that trained with it may be in databases where that one is not.
    Column("run_id", Uuid, nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("coach", AnyText, nullable=False),
    Column("rubric_sha256", AnyText, nullable=False),
    Column("terms", AnyJson, nullable=False),
    _now("made_at"),
    Index(None, "run_id"),
)

CORRECTED_SCORE = Table(
    "corrected_score",
    METADATA,
    _reference("score_id", "coach_score.id", primary_key=True),
    _reference("correction_id", "correction.id"),
    Column("raw", Double, nullable=False),
    Column("corrected", Double, nullable=False),
    CheckConstraint("corrected BETWEEN 0 AND 10", name="score_range"),
    Index(None, "correction_id"),
)

COACH_EXAM = Table(
    "coach_exam",
    METADATA,
    _id(),
    *(
        Column(name, AnyText, nullable=False)
        for name in ("coach", "model", "rubric_version", "rubric_sha256", "team")
    ),
    *(Column(name, Double, nullable=False) for name in ("share", "low", "high")),
    Column("passed", Boolean, nullable=False),
    *(Column(name, Integer, nullable=False) for name in ("pairs", "problems", "asked", "unscored")),
    Column("lines", AnyJson, nullable=False),
    Column("scores", AnyJson, nullable=False),
    _now("sat_at"),
)
