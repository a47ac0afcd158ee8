"""The query of what a divergence was worked out from."""

from mappa_core.audit import sql


def calibration(agent: str, task_type: str) -> str:
    """Score and outcome of the actions that one agent's calibration is judged by."""
    return f"""SELECT iteration, problem_id, action_id, score, success
{sql.judged_of(agent, task_type)}
ORDER BY iteration, problem_id, action_id"""
