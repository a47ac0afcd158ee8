"""The queries behind the figures; `{run}` is the run's id. All run as `mappa_auditor`."""

MEANS_BY_TYPE = """
SELECT task_type, success, count(score) AS n, avg(score) AS mean_score,
       count(DISTINCT problem_id) AS problems
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train' AND success IS NOT NULL
GROUP BY ROLLUP (task_type, success) ORDER BY task_type, success
"""

GAP_BY_ITERATION = """
SELECT iteration, task_type, success, count(score) AS n, avg(score) AS mean_score
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train' AND success IS NOT NULL
GROUP BY iteration, task_type, success ORDER BY iteration, task_type, success
"""

UPDATE_SHARE = """
SELECT iteration, agent, task_type, sum(n) AS n, sum(weight) AS weight, sum(pull) AS pull
FROM audit.update_share
WHERE run_id = '{run}'
GROUP BY iteration, agent, task_type ORDER BY iteration, agent, task_type
"""

SUCCESS_BY_TYPE = """
SELECT iteration, task_type, avg(success::int) AS success, count(*) AS n
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train' AND success IS NOT NULL
GROUP BY iteration, task_type ORDER BY iteration, task_type
"""

HEALTH = """
SELECT task_type, round(2 * score) / 2 AS score, count(*) AS n
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train' AND score IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2
"""

UNSCORED = """
SELECT task_type, count(*) AS asked, count(*) - count(score) AS unscored, avg(score) AS mean_score
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train'
GROUP BY task_type ORDER BY task_type
"""

DIVERGENCE = """
SELECT agent, task_type, iteration, avg(score) AS mean_score, avg(success::int) AS success
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train' AND success IS NOT NULL
GROUP BY agent, task_type, iteration ORDER BY agent, task_type, iteration
"""

REPEATS = """
SELECT action_id, coach, coach_model, coach_model_version, rubric_version, repeat_index, score
FROM audit.action_scores
WHERE run_id = '{run}' AND phase = 'train' AND action_id IN (
    SELECT action_id FROM audit.action_scores WHERE run_id = '{run}' AND NOT trained)
ORDER BY action_id, coach, repeat_index
"""

LABELS = """
SELECT l.action_id, l.labeller, l.label_score, s.score
FROM audit.human_labels l JOIN audit.action_scores s USING (action_id)
WHERE l.run_id = '{run}' AND s.trained
"""

ANCHORS = """
SELECT iteration, count(score) AS n, avg(score) AS mean_score, min(rubric_sha256) AS rubric
FROM audit.anchor_scores
WHERE run_id = '{run}'
GROUP BY iteration ORDER BY iteration
"""

STREAM = """
SELECT iteration, problem_id, avg(score) AS mean_score
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train'
GROUP BY iteration, problem_id ORDER BY iteration, problem_id
"""

FINDING = "SELECT estimate, low, high, p_value FROM audit.findings WHERE finding_id = '{finding}'"

_FACTORS = {
    "agent": "agent || ', turn ' || turn_index",
    "length": "width_bucket(log(2, 1 + sampled_tokens), 0, 12, 12)",
    "tool": "coalesce(tool_status, 'no tool call')",
    "level": "level",
    "outcome": "success",
    "iteration": "iteration",
}


def association(factor: str) -> str:
    """Mean scores by what an association is with."""
    return _ASSOCIATION.replace("{column}", _FACTORS[factor]).replace("{factor}", factor)


_ASSOCIATION = """
SELECT {column} AS {factor}, count(score) AS n, avg(score) AS mean_score
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train' AND success IS NOT NULL
GROUP BY 1 ORDER BY 1
"""
