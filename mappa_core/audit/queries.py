"""What the audit asks of the `audit` views, and of nothing else."""

# ruff: noqa: S608 (the words are ours; values are bound)

# Sums depend on the order of what is summed in their last digit, so rows come in one of their own,
# and a restored database gives the very figures of the old one.
FRAME = """
SELECT action_id, score, unscored_reason, task_type, agent, problem_id, iteration, turn_index,
    level, sampled_tokens, tool_status, success, advantage, weight
FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train' {only}
ORDER BY action_id
"""
OPINIONS = """
SELECT action_id, coach, coach_model, coach_model_version, rubric_version, repeat_index, trained,
    score, problem_id
FROM audit.action_scores
WHERE run_id = '{run}' AND phase = 'train' AND action_id IN (
    SELECT action_id FROM audit.action_scores WHERE run_id = '{run}' AND NOT trained)
ORDER BY score_id
"""
_SCORED = """
FROM audit.action_scores
WHERE run_id = :run AND phase = 'train' AND score IS NOT NULL"""
_COLUMNS = "action_id, episode_id, turn_index, agent, task_type"
CONTESTED = f"""
SELECT {_COLUMNS} {_SCORED}
GROUP BY {_COLUMNS} HAVING max(score) - min(score) >= 2
ORDER BY max(score) - min(score) DESC, action_id LIMIT :limit
"""
UNSURE = f"""
SELECT {_COLUMNS} {_SCORED} AND trained AND task_type IN (
    SELECT unnest(ARRAY[subject, against]) FROM audit.findings
    WHERE run_id = :run AND kind = 'task_type' AND verdict = 'cannot tell')
ORDER BY md5('unsure' || action_id) LIMIT :limit
"""
# Every stratum is walked through at the same pace from a start of its own, so that the beginning
# of this order is a sample in which each action has the same chance (systematic sampling).
AT_RANDOM = f"""
SELECT {_COLUMNS} FROM (
    SELECT {_COLUMNS},
        (row_number() OVER (PARTITION BY agent, task_type ORDER BY md5(action_id::text))
            - (hashtext(agent || '/' || task_type) & 1023) / 1024.0)
        / count(*) OVER (PARTITION BY agent, task_type) AS place
    {_SCORED} AND trained) AS placed
ORDER BY place, action_id LIMIT :limit
"""
