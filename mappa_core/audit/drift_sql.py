"""The queries behind the figures of a drift, and those that read a run's anchors.

`{run}` is the run's id, `:run` the same as a bound value.
"""

# ruff: noqa: S608 (the words are ours, and values that are not are quoted)

from mappa_core.audit.sql import TRAINED, quoted

ANCHORS = """
SELECT iteration, count(score) AS n, avg(score) AS mean_score, min(rubric_sha256) AS rubric
FROM audit.anchor_scores
WHERE run_id = '{run}'
GROUP BY iteration ORDER BY iteration
"""

STREAM = f"""
SELECT iteration, problem_id, avg(score) AS mean_score
{TRAINED}
GROUP BY iteration, problem_id ORDER BY iteration, problem_id
"""

VERSIONS = f"""
SELECT iteration, coach_model_version AS model_version, 'training' AS of, count(*) AS scores
{TRAINED} AND score IS NOT NULL
GROUP BY 1, 2
UNION ALL
SELECT iteration, model_version, 'anchors', count(*)
FROM audit.anchor_scores
WHERE run_id = '{{run}}' AND score IS NOT NULL
GROUP BY 1, 2
ORDER BY 1, 2
"""

RUN_ANCHORS = """
SELECT anchor_id AS id, run_id, action_id, episode_id, turn_index, known_score
FROM audit.anchors WHERE run_id = :run ORDER BY anchor_id
"""

ANCHOR_SCORES = """
SELECT anchor_id, iteration, repeat_index, score, unscored_reason, coach, model_version,
    rubric_sha256
FROM audit.anchor_scores WHERE run_id = :run ORDER BY iteration, anchor_id, repeat_index
"""

ANCHOR_TYPES = "SELECT DISTINCT anchor_id, task_type FROM audit.anchor_scores WHERE run_id = :run"

VERSIONS_THAT_TRAINED = """
SELECT iteration, coach_model_version AS model_version, count(*) AS actions
FROM audit.action_scores
WHERE run_id = :run AND trained AND phase = 'train' AND score IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2
"""


def anchors_of(task_type: str) -> str:
    """What the anchors of one task type got in each iteration."""
    return ANCHORS.replace("GROUP BY", f"AND task_type = {quoted(task_type)}\nGROUP BY")
