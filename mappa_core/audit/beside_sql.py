"""The queries of a coach's scores beside people's or another coach's, by task type and agent."""

# ruff: noqa: S608 (the words are ours, and values that are not are quoted)

from mappa_core.audit import sql
from mappa_core.audit.statistics.beside import Difference, TooFewLabels


def people(found: Difference | TooFewLabels) -> str:
    """The coach minus people, from all scores and the sampled labels."""
    return _difference(sql.LABELLED, found)


def coaches(found: Difference | TooFewLabels, trainer: str, other: str) -> str:
    """The coach that trained minus another, of the actions that both scored."""
    rows = f"""{sql.SEVERAL}, both_scored AS (
    SELECT action_id, problem_id, task_type, agent, true AS sampled,
           avg(score) FILTER (WHERE scorer = {sql.quoted(trainer)}) AS a,
           avg(score) FILTER (WHERE scorer = {sql.quoted(other)}) AS b
    FROM several GROUP BY action_id, problem_id, task_type, agent
)"""
    return _difference(rows, found, "both_scored WHERE a IS NOT NULL AND b IS NOT NULL")


def _difference(rows: str, found: Difference | TooFewLabels, of: str = "several WHERE true") -> str:
    of += found.domain.where and f" AND {found.domain.where}"
    if isinstance(found, TooFewLabels):
        return f"""{rows}
SELECT task_type, agent, count(*) AS actions, count(b) FILTER (WHERE sampled) AS labels
FROM {of} GROUP BY task_type, agent ORDER BY task_type, agent
"""
    domain, compared = found.domain, len(found.domain.types) > 1
    group = "PARTITION BY task_type" if compared else ""
    first = sql.quoted(domain.types[0]) if compared else ""
    sign = f"CASE WHEN task_type = {first} THEN 1 ELSE -1 END *" if compared else ""
    return f"""{rows}, cells AS (
    SELECT task_type, agent, count(*)::float8 AS n, avg(a) AS mean_score,
           avg(a - b - {found.trust!r} * a) FILTER (WHERE sampled AND b IS NOT NULL) AS apart,
           count(b) FILTER (WHERE sampled) AS labels
    FROM {of}
    GROUP BY task_type, agent
), weighted AS (
    SELECT *, {sign} n / sum(n) OVER ({group}) AS weight FROM cells
)
SELECT sum(weight * ({found.trust!r} * mean_score + apart)) AS estimate, sum(labels) AS actions
FROM weighted
"""
