"""The audit views: what SQL users read, and the role that may read nothing else.

Views run with their owner's rights, so a reader needs none on the tables.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

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
    score.coach,
    score.model AS coach_model,
    score.model_version AS coach_model_version,
    score.rubric_version,
    score.rubric_sha256,
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

COACH_BIAS = """
CREATE VIEW audit.coach_bias AS
SELECT
    run_id, run, phase, iteration,
    coach, coach_model, coach_model_version, rubric_version,
    agent, task_type,
    count(score) AS n,
    avg(score) AS mean_score,
    stddev_samp(score) AS sd_score
FROM audit.action_scores
GROUP BY
    run_id, run, phase, iteration,
    coach, coach_model, coach_model_version, rubric_version,
    agent, task_type
"""

UNSCORED = """
CREATE VIEW audit.unscored AS
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
    FROM audit.action_scores
) AS scores
WHERE unscored_reason IS NOT NULL
GROUP BY
    run_id, run, phase, iteration,
    coach, coach_model, coach_model_version, rubric_version,
    agent, task_type, unscored_reason
"""

SCORE_OUTCOME = """
CREATE VIEW audit.score_outcome AS
SELECT
    run_id, run, phase, iteration,
    coach, coach_model, coach_model_version, rubric_version,
    agent, task_type,
    count(score) AS n,
    avg(score) FILTER (WHERE success) AS mean_score_success,
    avg(score) FILTER (WHERE NOT success) AS mean_score_failure,
    corr(score, success::int) AS correlation
FROM audit.action_scores
WHERE success IS NOT NULL
GROUP BY
    run_id, run, phase, iteration,
    coach, coach_model, coach_model_version, rubric_version,
    agent, task_type
"""

UPDATE_SHARE = """
CREATE VIEW audit.update_share AS
SELECT
    learned.run_id,
    run.name AS run,
    learned.iteration,
    learned.agent,
    learned.id AS update_id,
    problem.task_type,
    problem.level,
    count(*) AS n,
    count(entry.left_out) AS n_left_out,
    sum(entry.weight) AS weight,
    sum(entry.weight * entry.advantage) AS pull,
    sum(entry.weight * abs(entry.advantage)) AS push
FROM mappa.update_action AS entry
JOIN mappa.update AS learned ON learned.id = entry.update_id
JOIN mappa.run ON run.id = learned.run_id
JOIN mappa.action ON action.id = entry.action_id
JOIN mappa.episode ON episode.id = action.episode_id
JOIN mappa.problem ON problem.id = episode.problem_id
GROUP BY
    learned.run_id, run.name, learned.iteration, learned.agent, learned.id,
    problem.task_type, problem.level
"""

VIEWS = {
    "action_scores": ACTION_SCORES,
    "coach_bias": COACH_BIAS,
    "unscored": UNSCORED,
    "score_outcome": SCORE_OUTCOME,
    "update_share": UPDATE_SHARE,
}

COMMENTS = {
    "VIEW audit.action_scores": "One row per score of an action: what the agent did, how the "
    "coach judged it, how the episode ended and what the update made of it.",
    "COLUMN audit.action_scores.phase": "train (scored to learn from) or held_out.",
    "COLUMN audit.action_scores.iteration": "Train: 1, 2, ...; held out: updates so far.",
    "COLUMN audit.action_scores.policy_step": "Updates the sampling weights had had.",
    "COLUMN audit.action_scores.score": "In [0, 10]; null where the coach gave none, and then "
    "unscored_reason says why.",
    "COLUMN audit.action_scores.trained": "Whether this is the one score of the action that the "
    "update used.",
    "COLUMN audit.action_scores.label_visible": "Whether the coach saw the expected answer.",
    "COLUMN audit.action_scores.success": "The truth about the episode, never shown to the coach; "
    "null where the episode failed.",
    "COLUMN audit.action_scores.advantage": "Mean over the tokens, after normalisation; null where "
    "left_out says why the action did not count.",
    "COLUMN audit.action_scores.weight": "Share of the loss of its update, in [0, 1].",
    "COLUMN audit.action_scores.checkpoint_id": "The weights that came out of its update.",
    "VIEW audit.coach_bias": "Mean, standard deviation and number of scores of each coach by "
    "agent, task type and iteration.",
    "VIEW audit.unscored": "How often each coach gave no score, by reason.",
    "COLUMN audit.unscored.share": "Of all actions the coach was asked about in that group.",
    "VIEW audit.score_outcome": "Whether scores agree with the truth, by coach, agent, task type "
    "and iteration.",
    "COLUMN audit.score_outcome.correlation": "Pearson (point-biserial) correlation of score and "
    "success; null where either does not vary.",
    "VIEW audit.update_share": "How much each kind of problem contributed to each update.",
    "COLUMN audit.update_share.weight": "Share of the loss; the shares of one update sum to 1.",
    "COLUMN audit.update_share.pull": "Sum of weight times advantage: above 0, these actions were "
    "made likelier.",
    "COLUMN audit.update_share.push": "Sum of weight times absolute advantage: how hard the "
    "update leaned on them.",
}

# Roles belong to the server, not to the database: another MAPPA may have made it already, or
# whoever runs the server, and then nobody else needs the right to make roles.
CREATE_AUDITOR = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'mappa_auditor') THEN
        CREATE ROLE mappa_auditor NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
END
$$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("CREATE SCHEMA audit")
    for statement in VIEWS.values():
        op.execute(statement)
    for target, comment in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{comment}'")
    op.execute(CREATE_AUDITOR)
    op.execute("GRANT USAGE ON SCHEMA audit TO mappa_auditor")
    op.execute("GRANT SELECT ON ALL TABLES IN SCHEMA audit TO mappa_auditor")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # The role stays, for other databases of the server; what it was granted goes with the views.
    for view in reversed(VIEWS):
        op.execute(f"DROP VIEW audit.{view}")
    op.execute("DROP SCHEMA audit")
