"""The queries behind the figures; `{run}` is the run's id. All run as `mappa_auditor`.

A query whose first column is `estimate` gives the finding's figure itself, its other columns those
beside it. A regression's effect is linear in what it explains, so its query is a weighted sum: the
weights are written out, everything else is read. Intervals, an onset and e-values are worked out
from rows; their queries give those rows, and `stored` what came out.
"""

# ruff: noqa: S608 (the words are ours, and values that are not are quoted)

from collections.abc import Mapping

from mappa_core.audit.records import CreditRule

TRAINED = """FROM audit.action_scores
WHERE run_id = '{run}' AND trained AND phase = 'train'"""

JUDGED = f"{TRAINED} AND score IS NOT NULL AND success IS NOT NULL"

LOOKED_AT = f"SELECT count(*) AS actions, max(iteration) AS newest {TRAINED}"


def judged_of(agent: str, task_type: str) -> str:
    """The actions of one agent on one task type that have both a score and an outcome."""
    return f"{JUDGED} AND agent = {quoted(agent)} AND task_type = {quoted(task_type)}"


def of_run(query: str, run_id: object) -> str:
    """A query with the run in it."""
    return query.replace("{run}", str(run_id)).strip()


def quoted(value: str) -> str:
    """A text as SQL spells it."""
    return "'" + value.replace("'", "''") + "'"


def effect(
    weights: Mapping[str, float], value: str, rows: str = JUDGED, counted: str = "true"
) -> str:
    """A regression's effect: the sum of `value` over rows, each times its weighted columns.

    Args:
        weights: (X'X)^-1 c, of each of the regression's columns in SQL; all 0 for no effect.
        value: What is explained.
        rows: Those that were fitted.
        counted: Which of them the finding counts.
    """
    terms = [f"{weight!r} * {column}" for column, weight in weights.items() if weight]
    terms = terms or ["NULL::float8"]
    return f"""
SELECT sum(({value})::float8 * (
           {(chr(10) + "         + ").join(terms)})) AS estimate,
       count(*) FILTER (WHERE {counted}) AS actions,
       count(DISTINCT problem_id) FILTER (WHERE {counted}) AS problems
{rows}
"""


def with_skill(
    expected: Mapping[tuple[str, int, int, int, int, int], tuple[float, float]],
    where: str = "true",
) -> str:
    """The actions with an outcome, each with how hard its problem is expected to be.

    Args:
        expected: By task type, level, first and last iteration of the quarter in which the problem
            was first played, episodes and right ones: the skill, and the chance of a right episode,
            that these let one expect.
        where: Which of the run's actions.
    """
    rows = ",\n        ".join(
        f"({quoted(kind)}, {', '.join(map(str, key))}, {skill!r}::float8, {success!r}::float8)"
        for (kind, *key), (skill, success) in sorted(expected.items())
    )
    return f"""FROM (
    WITH expected(task_type, level, since, until, played, won, skill, success) AS (VALUES
        {rows}
    ), rows AS (
        SELECT *
        {TRAINED} AND success IS NOT NULL AND {where}
    ), problems AS (
        SELECT problem_id, count(*) AS played, sum(success::int) AS won,
            min(iteration) AS first_iteration
        FROM (SELECT DISTINCT episode_id, problem_id, iteration, success FROM rows) AS episodes
        GROUP BY problem_id
    )
    SELECT rows.*, first_iteration, own.skill AS skill_own, others.skill AS skill_others,
        rows.success::int - others.success AS surprise
    FROM rows JOIN problems USING (problem_id)
    JOIN expected AS own ON own.task_type = rows.task_type AND own.level = rows.level
        AND first_iteration BETWEEN own.since AND own.until
        AND own.played = problems.played AND own.won = problems.won
    JOIN expected AS others ON others.task_type = rows.task_type
        AND others.level = rows.level
        AND first_iteration BETWEEN others.since AND others.until
        AND others.played = problems.played - 1
        AND others.won = problems.won - rows.success::int
) AS skilled
WHERE true"""


def gap_by_iteration(task_type: str, other: str) -> str:
    """Mean scores of a type and of another, by iteration and outcome."""
    return f"""
SELECT iteration, task_type = {quoted(task_type)} AS subject, success,
       count(*) AS n, avg(score) AS mean_score
{JUDGED} AND task_type IN ({quoted(task_type)}, {quoted(other)})
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


def health(where: str, estimate: str = "at_mode") -> str:
    """The distribution of some scores; `estimate` is the figure that is asked for."""
    return f"""
WITH rows AS (
    SELECT *
    {TRAINED} AND {where}
), shares AS (
    SELECT round(2 * score) / 2 AS point, count(*) / sum(count(*)) OVER () AS share
    FROM rows WHERE score IS NOT NULL GROUP BY 1
), described AS (
SELECT (SELECT max(share) FROM shares)::float8 AS at_mode,
       count(score) AS actions, count(DISTINCT problem_id) AS problems,
       (SELECT point FROM shares ORDER BY share DESC, point LIMIT 1) AS mode,
       avg(score) AS mean, coalesce(stddev_samp(score), 0) AS deviation,
       avg((score >= 10)::int)::float8 AS at_ceiling,
       (SELECT -sum(share * ln(share)) / ln(2.0) FROM shares)::float8 AS entropy_bits,
       avg((unscored_reason IS NOT DISTINCT FROM 'unparsable')::int)::float8 AS unparsed
FROM rows
)
SELECT {estimate} AS estimate, * FROM described
"""


def unscored(task_type: str, where: str = "true", estimate: str = "share") -> str:
    """What the missing scores of a type and of the others could hide."""
    return f"""
WITH sides AS (
    SELECT task_type = {quoted(task_type)} AS subject, count(*)::float8 AS asked,
           count(*) - count(score) AS missing, sum(score) / count(*) AS lowest, avg(score) AS mean,
           (sum(score) + 10 * (count(*) - count(score))) / count(*) AS highest,
           count(DISTINCT problem_id) AS problems
    {TRAINED} AND {where}
    GROUP BY 1
), bounds AS (
SELECT mine.missing / mine.asked AS share, mine.asked AS actions, mine.problems,
       mine.mean - other.mean AS gap, mine.lowest - other.highest AS lowest_gap,
       mine.highest - other.lowest AS highest_gap,
       greatest(mine.mean - other.mean - mine.lowest + other.highest,
                mine.highest - other.lowest - mine.mean + other.mean) AS possible_bias
FROM sides AS mine, sides AS other
WHERE mine.subject AND NOT other.subject
)
SELECT {estimate} AS estimate, * FROM bounds
"""


def update_share(agent: str, iteration: int, bias: str, rule: CreditRule) -> str:
    """The part of one update's advantages that goes with the bias.

    Args:
        agent: Whose update.
        iteration: Of it.
        bias: Points too much, as an expression.
        rule: What actions were held to account for.
    """
    group = "PARTITION BY problem_id, visit" if rule.by_problem else ""
    return f"""
WITH played AS (
    SELECT *, row_number() OVER (PARTITION BY episode_id, agent ORDER BY turn_index) AS visit,
           score IS NOT NULL AND sampled_tokens > 0
               AND left_out IS DISTINCT FROM 'truncated' AS counts
    {TRAINED} AND iteration = {iteration}
), credited AS (
    SELECT *, {_credited("score", rule)} AS s, {_credited(bias, rule)} AS b
    FROM played
), rows AS (
    SELECT advantage, {bias} AS bias, weight / sum(weight) OVER () AS w,
           s - avg(s) OVER ({group}) AS s, b - avg(b) OVER ({group}) AS b
    FROM credited
    WHERE agent = {quoted(agent)} AND counts AND advantage IS NOT NULL
), scaled AS (
    SELECT advantage, bias, w,
           coalesce(b * sum(w * s * advantage) OVER () / nullif(sum(w * s * s) OVER (), 0), 0) AS b
    FROM rows
)
SELECT coalesce(sum(w * b * advantage) / nullif(sum(w * advantage * advantage), 0), 0) AS estimate,
       count(*) AS actions, coalesce(sum(w * b) FILTER (WHERE bias > 0), 0) AS pull
FROM scaled
"""


def _credited(points: str, rule: CreditRule) -> str:
    """What an action is credited with, where those points are what the coach gives."""
    onwards = "ORDER BY turn_index ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"
    if rule.credit == "team":
        return f"avg({points}) FILTER (WHERE counts) OVER (PARTITION BY episode_id {onwards})"
    if rule.credit == "action":
        return f"({points})"
    ahead = f"power({rule.discount!r}::float8, visit - 1)"
    return (
        f"sum({points} * {ahead}) FILTER (WHERE counts) "
        f"OVER (PARTITION BY episode_id, agent {onwards}) / {ahead}"
    )


SCORER = "concat(coach, ' ', coach_model, ' ', coach_model_version, ', rubric ', rubric_version)"

SCORED_AGAIN = f"""SELECT action_id, problem_id, task_type, agent, {SCORER} AS scorer,
    repeat_index, trained, score
FROM audit.action_scores
WHERE run_id = '{{run}}' AND phase = 'train' AND action_id IN (
    SELECT action_id FROM audit.action_scores WHERE run_id = '{{run}}' AND NOT trained)"""

SEVERAL = f"""
WITH several AS (
{SCORED_AGAIN}
)"""


def repeats(scorer: str) -> str:
    """The deviation of a scorer's repeats within an action, of actions with all of them."""
    return f"""{SEVERAL}, spread AS (
    SELECT var_samp(score) AS variance, count(score) AS n, max(repeat_index) AS last
    FROM several WHERE scorer = {quoted(scorer)} GROUP BY action_id
)
SELECT sqrt(avg(variance)) AS estimate, count(*) AS actions
FROM spread WHERE n = (SELECT max(last) + 1 FROM spread)
"""


def second(trainer: str, other: str) -> str:
    """Krippendorff's alpha of two scorers, and their mean difference."""
    return f"""{SEVERAL}, means AS (
    SELECT avg(score) FILTER (WHERE scorer = {quoted(trainer)}) AS a,
           avg(score) FILTER (WHERE scorer = {quoted(other)}) AS b
    FROM several GROUP BY action_id
), {_alpha("means WHERE a IS NOT NULL AND b IS NOT NULL")}
"""


WITH_LABELS = f"""SELECT score, label, at_random, sampled, problem_id, task_type, agent
FROM (
    SELECT action_id, problem_id, task_type, agent, score {TRAINED} AND score IS NOT NULL
) AS scored
LEFT JOIN (
    SELECT action_id, avg(label_score) AS label, bool_or(picked = 'random') AS at_random,
        bool_or(picked IN ('random', 'audit')) AS sampled
    FROM audit.human_labels WHERE run_id = '{{run}}' GROUP BY action_id
) AS labels USING (action_id)"""

LABELLED = f"""
WITH several AS (
SELECT score AS a, label AS b, at_random, sampled, problem_id, task_type, agent FROM (
{WITH_LABELS}
) AS labelled
)"""


def _alpha(pairs: str) -> str:
    return f"""pairs AS (
    SELECT a, b, round(2 * a) / 2 AS ra, round(2 * b) / 2 AS rb FROM {pairs}
), pooled AS (
    SELECT ra AS r FROM pairs UNION ALL SELECT rb FROM pairs
)
SELECT 1 - avg((ra - rb) ^ 2) / (2 * (SELECT nullif(var_samp(r), 0) FROM pooled)) AS estimate,
       count(*) AS actions, avg(a - b) AS difference
FROM pairs"""


LABELS = f"{LABELLED}, {_alpha('several WHERE b IS NOT NULL')}\n"

PEOPLES_MEAN = f"""{LABELLED}, sized AS (
    SELECT count(*) FILTER (WHERE at_random) AS n,
           count(*) FILTER (WHERE at_random IS NOT TRUE) AS rest,
           covar_samp(a, b) FILTER (WHERE at_random) AS together, var_samp(a) AS spread
    FROM several
), trusted AS (
    SELECT CASE WHEN rest < 2 OR spread = 0 THEN 0
           ELSE least(greatest(together / ((1 + n::float8 / rest) * spread), 0), 1) END AS trust
    FROM sized
)
SELECT avg(b - trust * a) FILTER (WHERE at_random)
           + coalesce(trust * avg(a) FILTER (WHERE at_random IS NOT TRUE), 0) AS estimate,
       count(*) FILTER (WHERE at_random) AS actions, trust
FROM several, trusted GROUP BY trust
"""

SCORES_BY_TYPE = f"""
SELECT task_type, round(2 * score) / 2 AS point, count(*) AS n
{TRAINED} AND score IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2
"""

OUTCOMES_BY_SCORE = f"""
SELECT task_type, round(score) AS point, avg(success::int) AS share_right, count(*) AS n
{JUDGED}
GROUP BY 1, 2 ORDER BY 1, 2
"""

REPEATS = f"""{SEVERAL}
SELECT * FROM several ORDER BY action_id, scorer, repeat_index
"""

SIZE = f"""
SELECT count(*) AS actions, count(DISTINCT problem_id) AS problems
{TRAINED}
"""


def stored(finding: object) -> str:
    """The row of a finding."""
    return f"""SELECT estimate, low, high, p_value, actions, problems, detail
FROM audit.findings WHERE finding_id = '{finding}'"""
