"""The audit views on a run worked by hand, and who may read what."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from mappa_core.coach.scoring import score_id
from mappa_core.core import ids
from mappa_core.core.records.episodes import Outcome, StopReason
from mappa_core.core.records.scores import Unscored
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.builders import (
    make_checkpoint,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
)

ROOT = Path(__file__).parents[3]
VIEWS = (
    "action_scores",
    "coach_bias",
    "coach_requests",
    "file_trail",
    "manifests",
    "score_outcome",
    "unscored",
    "update_share",
)
AUDITED = (
    "anchor_scores",
    "anchors",
    "coach_exams",
    "corrected_scores",
    "experiment_scores",
    "findings",
    "human_labels",
    "runs",
)
"""What audits write, read in `test_auditing`."""
Row = DictRow
# A view of several tables takes no writes from anybody.
REFUSED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)


@pytest.fixture
def connection(filled_url: str) -> Iterator[psycopg.Connection[Row]]:
    with psycopg.Connection[Row].connect(for_psql(filled_url), row_factory=dict_row) as connection:
        yield connection


@pytest.fixture
def auditor(connection: psycopg.Connection[Row]) -> psycopg.Connection[Row]:
    connection.execute("SET ROLE mappa_auditor")
    connection.commit()
    return connection


def test_an_action_joins_to_everything(connection: psycopg.Connection[Row]) -> None:
    run, policy = make_run(), make_policy(make_run(), step=1)
    episode = make_episode(run, make_problem())
    row = connection.execute(
        "SELECT * FROM audit.action_scores WHERE score = 9 AND trained"
    ).fetchone()
    assert row is not None
    assert row["run_id"] == run.id
    assert row["episode_id"] == episode.id
    assert row["action_id"] == ids.action_id(episode.id, 0)
    assert row["update_id"] == ids.update_id(run.id, "solver", 1)
    assert row["checkpoint_id"] == make_checkpoint(policy).id
    expected = {
        "run": "quickstart-1",
        "phase": "train",
        "iteration": 1,
        "task_type": "addition",
        "agent": "solver",
        "policy_step": 0,
        "prompt_tokens": 3,
        "sampled_tokens": 3,
        "tool_status": "ok",
        "tool_exit_code": 0,
        "coach": "rule",
        "rationale": "as the evidence says",
        "unscored_reason": None,
        "success": True,
        "advantage": 0.75,
        "weight": 0.25,
        "left_out": None,
    }
    assert {name: row[name] for name in expected} == expected


def test_one_row_per_score_and_only_the_trained_one_entered_the_update(
    connection: psycopg.Connection[Row],
) -> None:
    rows = connection.execute("SELECT trained, update_id FROM audit.action_scores").fetchall()
    assert len(rows) == 8
    assert all((row["update_id"] is not None) == row["trained"] for row in rows)


def test_coach_bias_by_hand(connection: psycopg.Connection[Row]) -> None:
    rows = connection.execute(
        "SELECT task_type, n, mean_score, sd_score FROM audit.coach_bias ORDER BY task_type"
    ).fetchall()
    addition, multiplication = rows
    # Scores 9, 5, 7, 5 and 2, 5, none, 5.
    assert (addition["n"], addition["mean_score"]) == (4, 6.5)
    assert addition["sd_score"] == pytest.approx((11 / 3) ** 0.5)
    assert (multiplication["n"], multiplication["mean_score"]) == (3, 4.0)
    assert multiplication["sd_score"] == pytest.approx(3**0.5)


def test_unscored_by_hand(connection: psycopg.Connection[Row]) -> None:
    rows = connection.execute(
        "SELECT task_type, unscored_reason, n, share FROM audit.unscored"
    ).fetchall()
    expected = {
        "task_type": "multiplication",
        "unscored_reason": "timeout",
        "n": 1,
        "share": 0.25,
    }
    assert rows == [expected]


def test_an_absence_counts_as_it_ended(store: Store, connection: psycopg.Connection[Row]) -> None:
    episode = make_episode(make_run(), make_problem("What is 2 * 3?"), rollout_index=1)
    first = make_score(episode, 0, Unscored(reason="timeout", detail="30 s"))

    def asked_again(attempt: int, score: float | Unscored) -> None:
        again = score_id(first.action_id, first.identity, 0, 1 + attempt)
        store.scores.add_scores([replace(make_score(episode, 0, score), id=again)])

    def unscored() -> list[Row]:
        query = b"SELECT unscored_reason, n, share FROM audit.unscored"
        return connection.execute(query).fetchall()

    asked_again(1, Unscored(reason="refused", detail="no"))
    assert unscored() == [{"unscored_reason": "refused", "n": 1, "share": 0.25}]
    asked_again(2, 4.0)
    assert unscored() == []


def test_score_outcome_by_hand(connection: psycopg.Connection[Row]) -> None:
    row = connection.execute(
        "SELECT * FROM audit.score_outcome WHERE task_type = 'addition'"
    ).fetchone()
    assert row is not None
    # Right answers got 9 and 5, wrong ones 7 and 5.
    assert (row["n"], row["mean_score_success"], row["mean_score_failure"]) == (4, 7.0, 6.0)
    assert row["correlation"] == pytest.approx(0.5 / (11 / 4) ** 0.5)


def test_update_share_by_hand(connection: psycopg.Connection[Row]) -> None:
    rows = connection.execute(
        "SELECT task_type, n, n_left_out, weight, pull, push "
        "FROM audit.update_share ORDER BY task_type"
    ).fetchall()
    # Advantages 0.75 and 0.25 of weight 1/4 each, and -1 of weight 1/2.
    assert [tuple(row.values()) for row in rows] == [
        ("addition", 2, 0, 0.5, 0.25, 0.25),
        ("multiplication", 2, 1, 0.5, -0.5, 0.5),
    ]


def test_every_view_says_what_it_is(connection: psycopg.Connection[Row]) -> None:
    rows = connection.execute(
        "SELECT relname, obj_description(oid) AS comment FROM pg_class "
        "WHERE relnamespace = 'audit'::regnamespace ORDER BY relname"
    ).fetchall()
    assert tuple(row["relname"] for row in rows) == tuple(sorted((*VIEWS, *AUDITED, "evaluations")))
    assert all(row["comment"] for row in rows)


def test_evaluations_have_their_failures_beside_every_mean(store: Store, database_url: str) -> None:
    run, problem = make_run(), make_problem()
    store.runs.add_run(run)
    store.episodes.add_problems([problem])
    good = Outcome(
        success=True, answer="f", method="csv", metric="rmse", value=1.0, charged=1.0, skill=0.5
    )
    invalid = Outcome(
        success=False, answer=None, method="csv", metric="rmse", charged=2.0, skill=0.0
    )
    for rollout, outcome in enumerate((good, invalid, None)):
        episode = make_episode(run, problem, phase="held_out", rollout_index=rollout)
        store.episodes.open_episode(episode)
        reason = StopReason.ANSWERED if outcome else StopReason.FAILED
        store.episodes.close_episode(episode.closed(reason, outcome=outcome))
    with psycopg.connect(for_psql(database_url)) as connection:
        connection.execute("SET ROLE mappa_auditor")
        row = connection.execute(
            "SELECT step, samples, successes, failed, invalid, metric, mean_value, mean_charged, "
            "mean_skill FROM audit.evaluations"
        ).fetchone()
    assert row == (1, 3, 1, 1, 1, "rmse", 1.0, 1.5, pytest.approx(0.5 / 3))


@pytest.mark.parametrize("view", VIEWS)
def test_an_auditor_reads_every_view(auditor: psycopg.Connection[Row], view: str) -> None:
    assert auditor.execute(f"SELECT * FROM audit.{view}".encode()).fetchall()


@pytest.mark.parametrize(
    "statement",
    [
        b"UPDATE mappa.coach_score SET score = 10",
        b"DELETE FROM audit.action_scores",
        b"UPDATE audit.coach_bias SET n = 0",
        b"INSERT INTO mappa.artifact VALUES ('00', 0)",
        b"CREATE TABLE audit.mine (id int)",
        b"CREATE TABLE public.mine (id int)",
    ],
)
def test_an_auditor_may_do_nothing_else(auditor: psycopg.Connection[Row], statement: bytes) -> None:
    with pytest.raises(REFUSED):
        auditor.execute(statement)


def worked_queries() -> dict[str, str]:
    guide = (ROOT / "docs" / "sql.md").read_text()
    return dict(
        re.findall(r"^## \d+\. ([^\n]+)\n.*?```sql\n(.*?)```", guide, re.DOTALL | re.MULTILINE)
    )


QUERIES = worked_queries()


def test_the_guide_has_ten_worked_queries_and_one() -> None:
    assert len(QUERIES) == 11


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_every_query_of_the_guide_answers(auditor: psycopg.Connection[Row], query: str) -> None:
    assert auditor.execute(query.encode()).fetchall()


def other_queries() -> dict[str, str]:
    """Queries in the rest of the documentation, by page and number."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {
        f"{page.name} {number}": query
        for page in pages
        if page.name != "sql.md"
        for number, query in enumerate(re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL))
    }


OTHERS = other_queries()


@pytest.mark.parametrize("query", OTHERS.values(), ids=OTHERS)
def test_every_query_of_another_page_answers(auditor: psycopg.Connection[Row], query: str) -> None:
    assert auditor.execute(query.encode()).fetchall()


def test_equal_work_is_compared_by_hand(auditor: psycopg.Connection[Row]) -> None:
    (row,) = auditor.execute(QUERIES["The same, with controls"].encode()).fetchall()
    # Wrong in both: 7 points for the addition and 2 for the multiplication, one pair.
    assert (row["task_type"], row["compared_with"]) == ("addition", "multiplication")
    assert (row["pairs"], row["gap"]) == (1, 5)


def test_the_file_trail_by_hand(connection: psycopg.Connection[Row]) -> None:
    rows = connection.execute(
        "SELECT name, use, agent, turn_index, size_bytes, sha256, tool_status, success "
        "FROM audit.file_trail ORDER BY success, task_type, name"
    ).fetchall()
    expected = ("a.txt", "written", "solver", 0, 1, "0b" * 32, "ok", False)
    assert tuple(rows[0].values()) == expected
    assert [row["use"] for row in rows].count("written") == 8
    assert [row["use"] for row in rows].count("read") == 4
