"""The queries that pick stored actions: for people to label, for anchors and experiments.

`:run` is the run's id, `:limit` how many are wanted at most.
"""

# ruff: noqa: S608 (the words are ours; values are bound)

SCORED = """
FROM audit.action_scores
WHERE run_id = :run AND phase = 'train' AND score IS NOT NULL"""
CANDIDATE = "action_id, episode_id, turn_index, agent, task_type"
CONTESTED = f"""
SELECT {CANDIDATE} {SCORED}
GROUP BY {CANDIDATE} HAVING max(score) - min(score) >= 2
ORDER BY max(score) - min(score) DESC, action_id LIMIT :limit
"""
UNSURE = f"""
SELECT {CANDIDATE} {SCORED} AND trained AND task_type IN (
    SELECT unnest(ARRAY[subject, against]) FROM audit.findings
    WHERE run_id = :run AND kind = 'task_type' AND verdict = 'cannot tell')
ORDER BY md5('unsure' || action_id) LIMIT :limit
"""
# Every stratum is walked through at the same pace from a start of its own, so that the beginning
# of this order is a sample in which each action has the same chance (systematic sampling).
AT_RANDOM = f"""
SELECT {CANDIDATE} FROM (
    SELECT {CANDIDATE},
        (row_number() OVER (PARTITION BY agent, task_type ORDER BY md5(action_id::text))
            - (hashtext(agent || '/' || task_type) & 1023) / 1024.0)
        / count(*) OVER (PARTITION BY agent, task_type) AS place
    {SCORED} AND trained) AS placed
ORDER BY place, action_id LIMIT :limit
"""
# As many of every stratum, each in the order that `AT_RANDOM` walks it in: what either picks is a
# simple random sample of the stratum, and so is what both pick.
EVENLY = f"""
SELECT {CANDIDATE} FROM (
    SELECT {CANDIDATE},
        row_number() OVER (PARTITION BY agent, task_type ORDER BY md5(action_id::text)) AS place
    {SCORED} AND trained) AS placed
ORDER BY place, agent, task_type LIMIT :limit
"""
