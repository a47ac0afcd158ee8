"""The queries behind the figures of an experiment; `{run}` is the run's id, as in `sql`."""

# ruff: noqa: S608 (the words are ours, and values that are not are quoted)

EXPERIMENT = """FROM (
    SELECT rescored.action_id, rescored.problem_id, rescored.task_type, rescored.agent,
           rescored.iteration, rescored.success, rescored.change, rescored.put, rescored.unseen,
           rescored.score, trained.score AS stored
    FROM audit.experiment_scores AS rescored
    JOIN audit.action_scores AS trained USING (run_id, action_id, coach, coach_model, rubric_sha256)
    WHERE run_id = '{run}' AND trained.trained
) AS scorings"""


def paired(one: str, other: str, difference: str = "one.score - other.score") -> str:
    """The mean difference of two scorings within the same actions.

    Args:
        one: Which scorings, as a condition on the columns of `one`.
        other: What they are compared with, likewise.
        difference: What is averaged.
    """
    return f"""
WITH plain AS (
    SELECT action_id, score AS plain {EXPERIMENT} WHERE change = 'as it was'
), asked AS (
    SELECT action_id, problem_id, task_type, agent, iteration, success, change, put, stored,
           CASE WHEN unseen THEN plain ELSE score END AS score
    {EXPERIMENT} JOIN plain USING (action_id)
), pairs AS (
    SELECT one.problem_id, {difference} AS difference
    FROM asked AS one JOIN asked AS other USING (action_id)
    WHERE {one} AND {other}
)
SELECT avg(difference) AS estimate, count(difference) AS actions,
       count(DISTINCT problem_id) FILTER (WHERE difference IS NOT NULL) AS problems
FROM pairs
"""
