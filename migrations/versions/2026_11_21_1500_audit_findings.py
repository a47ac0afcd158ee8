"""What audits write: findings, anchors, people's labels, corrections; and views on them.

Revision ID: 0006
Revises: 0005
"""

from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = ("corrected_score", "correction", "anchor_score", "anchor", "human_label", "audit_finding")

VIEWS = {
    "runs": """
CREATE VIEW audit.runs AS
SELECT
    id AS run_id, name AS run, team, status, seed, code_version, started_at, ended_at,
    config -> 'algorithm' ->> 'baseline' AS baseline
FROM mappa.run
""",
    "findings": """
CREATE VIEW audit.findings AS
SELECT
    finding.id AS finding_id, finding.run_id, run.name AS run,
    finding.kind, finding.subject, finding.against, finding.stratum, finding.verdict,
    finding.estimate, finding.unit, finding.low, finding.high, finding.p_value, finding.margin,
    finding.actions, finding.problems, finding.iteration, finding.sql, finding.detail,
    finding.found_at
FROM mappa.audit_finding AS finding
JOIN mappa.run ON run.id = finding.run_id
""",
    "anchors": """
CREATE VIEW audit.anchors AS
SELECT
    anchor.run_id, anchor.id AS anchor_id, anchor.action_id, action.episode_id, action.turn_index,
    anchor.known_score
FROM mappa.anchor
JOIN mappa.action ON action.id = anchor.action_id
""",
    "anchor_scores": """
CREATE VIEW audit.anchor_scores AS
SELECT
    anchor.run_id, run.name AS run, anchor.id AS anchor_id, anchor.action_id, action.agent,
    problem.task_type, anchor.known_score, score.iteration, score.repeat_index, score.score,
    score.unscored_reason, score.coach, score.model_version, score.rubric_sha256, score.scored_at
FROM mappa.anchor_score AS score
JOIN mappa.anchor ON anchor.id = score.anchor_id
JOIN mappa.run ON run.id = anchor.run_id
JOIN mappa.action ON action.id = anchor.action_id
JOIN mappa.episode ON episode.id = action.episode_id
JOIN mappa.problem ON problem.id = episode.problem_id
""",
    "human_labels": """
CREATE VIEW audit.human_labels AS
SELECT
    episode.run_id, label.action_id, label.labeller, label.score AS label_score, label.note,
    label.labelled_at
FROM mappa.human_label AS label
JOIN mappa.action ON action.id = label.action_id
JOIN mappa.episode ON episode.id = action.episode_id
""",
    "corrected_scores": """
CREATE VIEW audit.corrected_scores AS
SELECT
    episode.run_id, score.action_id, corrected.score_id, corrected.correction_id,
    corrected.raw, corrected.corrected, correction.run_id AS estimated_on_run_id,
    correction.iteration AS estimated_up_to
FROM mappa.corrected_score AS corrected
JOIN mappa.correction ON correction.id = corrected.correction_id
JOIN mappa.coach_score AS score ON score.id = corrected.score_id
JOIN mappa.action ON action.id = score.action_id
JOIN mappa.episode ON episode.id = action.episode_id
""",
}

COMMENTS = {
    "VIEW audit.runs": "Every run in a line; baseline is what its advantages are relative to.",
    "VIEW audit.findings": "What audits found: one row per figure, its interval and its query.",
    "COLUMN audit.findings.verdict": "biased, equivalent or cannot tell; for drift its cause.",
    "COLUMN audit.findings.p_value": "Benjamini-Hochberg adjusted where it is one of a family.",
    "VIEW audit.anchors": "The actions that are scored again in every iteration.",
    "VIEW audit.anchor_scores": "Fixed actions scored again in every iteration; iteration 0 holds "
    "the baseline repeats.",
    "VIEW audit.human_labels": "Scores that people gave to actions.",
    "VIEW audit.corrected_scores": "Scores a correction changed before they trained: raw, "
    "corrected, and which correction.",
}


def _reference(name: str, target: str, *, primary_key: bool = False) -> sa.Column[UUID]:
    foreign = sa.ForeignKey(f"mappa.{target}")
    return sa.Column(name, sa.Uuid(), foreign, nullable=False, primary_key=primary_key)


def _now(name: str) -> sa.Column[datetime]:
    moment = sa.DateTime(timezone=True)
    return sa.Column(name, moment, server_default=sa.func.now(), nullable=False)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _create_findings()
    _create_anchors()
    _create_labels_and_corrections()
    for statement in VIEWS.values():
        op.execute(statement)
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    for view in VIEWS:
        op.execute(f"GRANT SELECT ON audit.{view} TO mappa_auditor")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for view in reversed(VIEWS):
        op.execute(f"DROP VIEW audit.{view}")
    for table in TABLES:
        op.drop_table(table, schema="mappa")


def _create_findings() -> None:
    op.create_table(
        "audit_finding",
        sa.Column("id", sa.Uuid(), primary_key=True),
        _reference("run_id", "run.id"),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("kind", "subject", "against", "stratum", "verdict")
        ),
        sa.Column("estimate", sa.Double()),
        sa.Column("unit", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Double()) for name in ("low", "high", "p_value", "margin")),
        sa.Column("actions", sa.Integer(), nullable=False),
        sa.Column("problems", sa.Integer(), nullable=False),
        sa.Column("iteration", sa.Integer()),
        sa.Column("sql", sa.Text(), nullable=False),
        sa.Column("detail", postgresql.JSONB(), nullable=False),
        _now("found_at"),
        schema="mappa",
    )
    op.create_index(
        "ix_audit_finding_run_id_kind", "audit_finding", ["run_id", "kind"], schema="mappa"
    )


def _create_anchors() -> None:
    op.create_table(
        "anchor",
        sa.Column("id", sa.Uuid(), primary_key=True),
        _reference("run_id", "run.id"),
        _reference("action_id", "action.id"),
        sa.Column("known_score", sa.Double()),
        sa.UniqueConstraint("run_id", "action_id"),
        sa.CheckConstraint("known_score BETWEEN 0 AND 10", name="score_range"),
        schema="mappa",
    )
    op.create_table(
        "anchor_score",
        _reference("anchor_id", "anchor.id", primary_key=True),
        sa.Column("iteration", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("repeat_index", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("score", sa.Double()),
        sa.Column("unscored_reason", sa.Text()),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("coach", "model_version", "rubric_sha256")
        ),
        _now("scored_at"),
        sa.CheckConstraint("score BETWEEN 0 AND 10", name="score_range"),
        sa.CheckConstraint(
            "(score IS NULL) = (unscored_reason IS NOT NULL)", name="scored_or_why_not"
        ),
        schema="mappa",
    )


def _create_labels_and_corrections() -> None:
    op.create_table(
        "human_label",
        _reference("action_id", "action.id", primary_key=True),
        sa.Column("labeller", sa.Text(), primary_key=True),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        _now("labelled_at"),
        sa.CheckConstraint("score BETWEEN 0 AND 10", name="score_range"),
        schema="mappa",
    )
    op.create_table(
        "correction",
        sa.Column("id", sa.Uuid(), primary_key=True),
        _reference("run_id", "run.id"),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("coach", sa.Text(), nullable=False),
        sa.Column("rubric_sha256", sa.Text(), nullable=False),
        sa.Column("terms", postgresql.JSONB(), nullable=False),
        _now("made_at"),
        schema="mappa",
    )
    op.create_index("ix_correction_run_id", "correction", ["run_id"], schema="mappa")
    op.create_table(
        "corrected_score",
        _reference("score_id", "coach_score.id", primary_key=True),
        _reference("correction_id", "correction.id"),
        sa.Column("raw", sa.Double(), nullable=False),
        sa.Column("corrected", sa.Double(), nullable=False),
        sa.CheckConstraint("corrected BETWEEN 0 AND 10", name="score_range"),
        schema="mappa",
    )
    op.create_index(
        "ix_corrected_score_correction_id", "corrected_score", ["correction_id"], schema="mappa"
    )
