"""The run's page: what it says is what the rows say, and it needs nothing else."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.core.records.episodes import Outcome, StopReason
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachScore, Unscored
from mappa_core.evaluate.run_page import html
from mappa_core.evaluate.run_story import read_story
from mappa_core.store.store import Store
from tests.builders import (
    RULE_COACH,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_tool_result,
    make_turn,
    make_update,
)
from tests.integration.platform.conftest import Mappa

HARSH = replace(RULE_COACH, coach="openai", model="harsh")


@pytest.fixture
def run(store: Store) -> Run:
    """Two iterations of three episodes: 3, 6 and 9 points, the last one right; then unscored."""
    run = make_run("told")
    store.runs.add_run(run)
    problem = make_problem("What is <b>2</b> + 3?")
    store.episodes.add_problems([problem])
    for step in (0, 1):
        store.policies.add_policy_version(make_policy(run, "solver", step))
    store.updates.add_update(*make_update(run, "solver", 2))
    for iteration in (1, 2):
        for index, points in enumerate((3.0, 6.0, 9.0)):
            episode = make_episode(run, problem, iteration=iteration, rollout_index=index)
            store.episodes.open_episode(episode)
            turn = make_turn(
                make_policy(run, "solver", 0),
                text=f"I say {points:.0f}",
                tool_result=make_tool_result(),
            )
            store.episodes.add_turn(episode, turn)
            outcome = Outcome(success=points == 9.0, answer="5", method="math-verify")
            store.episodes.close_episode(
                episode.with_turn(turn).closed(StopReason.ANSWERED, outcome=outcome)
            )
            said = CoachScore(value=points, rationale=f"worth {points}", cost_usd=0.25)
            store.scores.add_scores([make_score(episode, 0, said)])
            if points == 6.0:
                store.scores.add_scores(
                    [make_score(episode, 0, 1.0, identity=HARSH, trained=False)]
                )
    lost = make_episode(run, problem, iteration=2, rollout_index=3)
    store.episodes.open_episode(lost)
    store.episodes.add_turn(lost, make_turn(make_policy(run, "solver", 0)))
    store.episodes.close_episode(
        lost.with_turn(make_turn(make_policy(run, "solver", 0))).closed(
            StopReason.ANSWERED, outcome=Outcome(success=False, answer=None, method="math-verify")
        )
    )
    store.scores.add_scores([make_score(lost, 0, Unscored(reason="timeout", detail="away"))])
    return run


def test_the_story_is_what_the_rows_say(store: Store, run: Run) -> None:
    story = read_story(store, run)
    first, second = story.iterations
    assert (first.success_rate, second.success_rate) == (1 / 3, 1 / 4)
    assert [each.agents[0].mean_score for each in story.iterations] == [6.0, 6.0]
    assert second.agents[0].unscored == 1
    assert [each.cost_usd for each in story.iterations] == [0.75, 0.75]
    assert story.kl == {}
    by_kind = {each.why: each for each in reversed(story.examples)}
    assert by_kind["most contested"].scores[0][1] == 6.0
    assert by_kind["most contested"].scores[1][:2] == ("harsh", 1.0)
    assert by_kind["best"].text == "I say 9"
    assert len(story.examples) == len({each.text for each in story.examples}) == 3


def test_the_page_stands_alone_and_escapes_what_models_write(
    mappa: Mappa, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    assert mappa("report", "told", "--to", str(file))[:2] == (0, f"{file}\n")
    page = file.read_text()
    assert "<b>2</b>" not in page
    assert "&lt;b&gt;2&lt;/b&gt;" in page
    assert "Mean score" in page
    assert "1.5000 dollars" in page
    assert "algorithm.kl=none" in page
    assert not re.findall(r"""<script|<link|@import|url\((?!#)|(?:src|href)=["']?(?!["'#])""", page)


def test_the_page_says_what_a_team_can_by_kind_of_problem(store: Store, run: Run) -> None:
    contests = {"Of two boxes?": "aime", "Of three boxes?": "amc", "Of four boxes?": "amc"}
    problems = [
        replace(make_problem(statement), attributes={"contest": contest})
        for statement, contest in contests.items()
    ]
    store.episodes.add_problems(problems)
    solver = make_policy(run, "solver", 0)
    # After two updates AMC's are right; the step between was cut short.
    for step, measured in ((0, problems), (1, problems[:1]), (2, problems)):
        for problem in measured:
            episode = make_episode(run, problem, phase="held_out", iteration=step)
            store.episodes.open_episode(episode)
            turn = make_turn(solver)
            store.episodes.add_turn(episode, turn)
            right = step == 2 and problem.attributes["contest"] == "amc"
            outcome = Outcome(success=right, answer="5", method="math-verify")
            store.episodes.close_episode(
                episode.with_turn(turn).closed(StopReason.ANSWERED, outcome=outcome)
            )
    page = html(read_story(store, run))
    table = page[page.index("Held-out problems by contest") :]
    rows = table[: table.index("</table>")].split("<tr>")[1:]
    cells = [re.findall(r"<t[hd]>([^<]*)", row) for row in rows]
    assert cells[0][:5] == ["contest", "problems", "episodes", "before", "after"]
    assert [row[:5] for row in cells[1:]] == [
        ["aime", "1", "1", "0.0%", "0.0%"],
        ["amc", "2", "2", "0.0%", "100.0%"],
    ]


def test_a_run_without_episodes_has_a_page_too(store: Store) -> None:
    store.runs.add_run(make_run("empty"))
    page = html(read_story(store, store.runs.get_run("empty")))
    assert "No action was scored." in page
    assert "dollars" not in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
def test_a_phone_shows_it_without_scrolling_sideways(
    store: Store, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    # The browser says itself by how much the page is wider than its window.
    root = "document.documentElement"
    measure = (
        f"<script>document.title = 'over ' + ({root}.scrollWidth - {root}.clientWidth)</script>"
    )
    file.write_text(html(read_story(store, run)).replace("</body>", f"{measure}</body>"))
    shown = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--window-size=500,900",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "<title>over 0</title>" in shown.stdout
    assert shown.stdout.count("<svg") >= 5


def test_a_place_where_no_export_can_be_is_refused(mappa: Mappa, run: Run) -> None:
    code, _, error = mappa("export", run.name, "--to", "jsonl", "--out", "/proc/x")
    assert code == 2
    assert error == ("mappa: --out: /proc/x.unfinished cannot be made: No such file or directory\n")
