"""`mappa rescore`, `mappa show --coach`, `mappa rubric lint` and the dry run, as typed."""

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from mappa_cli.main import main
from mappa_core.app.config import TrainConfig
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.coach.scoring import ScorePlan, score_episode
from mappa_core.core.records.episodes import Episode, StopReason
from mappa_core.store.store import Store
from tests.builders import make_episode, make_policy, make_problem, make_run, make_turn

AGENTS = ("problem_solver", "code_executor", "verifier")


@pytest.fixture
def stand_in() -> Iterator[str]:
    """The stand-in as a process of its own; yields its address."""
    command = [sys.executable, "-m", "mappa_cli.provider_stub", "--latency", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture
def episode(store: Store) -> Episode:
    run = replace(make_run(), config=TrainConfig().model_dump(mode="json"))
    store.runs.add_run(run)
    store.episodes.add_problems([make_problem()])
    episode = make_episode(run, make_problem())
    store.episodes.open_episode(episode)
    for index, agent in enumerate(AGENTS):
        store.policies.add_policy_version(make_policy(run, agent))
        turn = make_turn(make_policy(run, agent), index, text=f"{agent} says 5. Score: 10")
        store.episodes.add_turn(episode, turn)
        episode = episode.with_turn(turn)
    episode = episode.closed(StopReason.ANSWERED)
    store.episodes.close_episode(episode)
    asyncio.run(score_episode(episode, plan=ScorePlan(coach=RuleCoach("mathchat")), store=store))
    return episode


def mappa(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int | str | None, str, str]:
    monkeypatch.setattr(sys, "argv", ["mappa", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


def test_stored_actions_are_scored_again_and_every_score_can_be_traced(
    stand_in: str,
    episode: Episode,
    store: Store,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    monkeypatch.setenv("GOOGLE_API_KEY", "very-secret")
    command = ("rescore", "quickstart-1", "--coach", "gemini:test-model", "--json", "--yes")
    prices = (f"coach.base_url={stand_in}", "coach.prices.input_usd=1")
    code, out, err = mappa(monkeypatch, capsys, *command, *prices, "--limit", "2")
    assert code == 0, err
    result = json.loads(out)
    assert (result["scored"], result["unscored"], result["calls"]) == (2, 0, 2)
    assert "2 actions of quickstart-1 without a score" in err
    assert "about 2 calls" in err
    _, out, _ = mappa(monkeypatch, capsys, *command, *prices)
    assert json.loads(out)["scored"] == 1
    _, out, _ = mappa(monkeypatch, capsys, *command, *prices)
    assert json.loads(out)["calls"] == 0

    code, out, err = mappa(monkeypatch, capsys, "show", str(episode.id), "--coach")
    assert code == 0, err
    entry = next(
        e for e in store.scores.scores_of_episode(episode.id) if e.score.request is not None
    )
    request, reply = entry.score.request, entry.score.raw_reply
    assert request is not None
    assert reply is not None
    for text in (request.system, request.prompt, reply):
        for line in text.splitlines():
            assert line in out
    assert "test-model-stub-001" in out
    assert entry.identity.rubric_sha256 in out
    assert f"{entry.score.cost_usd:.6f} dollars" in out
    assert f"{entry.score.seconds:.3f} s" in out
    assert "fake_score" in out
    assert "very-secret" not in out + err


DSBENCH_COACH = ("--coach", "openai:judge", "--yes")
ADDRESS = "coach.base_url=http://127.0.0.1:9/v1"
UNTOLD = "caps agent analyst by roc_auc and rmse_over_sd, which its coach is not told"


def store_dsbench_run(store: Store) -> None:
    """Store a run of two kinds of tasks, with an episode of each."""
    config = TrainConfig.model_validate({"team": "dsbench", "problems": {"source": "tabular"}})
    run = replace(make_run(), team="dsbench", config=config.model_dump(mode="json"))
    store.runs.add_run(run)
    kinds = ("classification", "regression")
    problems = [make_problem(kind, task_type=kind) for kind in kinds]
    store.episodes.add_problems(problems)
    for problem in problems:
        episode = make_episode(run, problem)
        store.episodes.open_episode(episode)
        store.episodes.close_episode(episode.closed(StopReason.ANSWERED))


def test_no_coach_scores_again_by_caps_whose_figures_it_is_not_told(
    store: Store,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store_dsbench_run(store)
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    command = ("rescore", "quickstart-1", ADDRESS)
    code, _, err = mappa(monkeypatch, capsys, *command, *DSBENCH_COACH)
    assert (code, err.count("\n")) == (2, 1)
    assert UNTOLD in err
    told = "coach.visibility.analyst=outcome_only"
    code, _, err = mappa(monkeypatch, capsys, *command, told, *DSBENCH_COACH)
    assert code == 0, err
    # Whose audit asks another coach first is told the same.
    against = ("audit", "quickstart-1", "--against", "openai:judge", "--yes", "--set", ADDRESS)
    code, _, err = mappa(monkeypatch, capsys, *against)
    assert code == 2
    assert UNTOLD in err


def test_no_coach_is_examined_by_caps_whose_figures_it_is_not_told(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    tasks = ("problems.source=tabular", "problems.train_size=4", "problems.held_out_size=2")
    keys = ("team=dsbench", *tasks, "coach.backend=openai", "coach.model=judge")
    sets = [word for key in (*keys, ADDRESS) for word in ("--set", key)]
    code, _, err = mappa(monkeypatch, capsys, "audit", "--before", "--yes", *sets)
    assert (code, err.count("\n")) == (2, 1)
    assert UNTOLD in err


def test_a_person_is_asked_before_an_exam_that_may_cost_money_alone(
    stand_in: str,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    keys = (
        *("problems.levels=[1]", "problems.train_size=60", "problems.held_out_size=8"),
        *("coach.backend=openai", "coach.model=judge", f"coach.base_url={stand_in}/v1"),
    )
    sets = [word for key in keys for word in ("--set", key)]
    priced = ("--set", "coach.prices.input_usd=1")
    code, out, err = mappa(monkeypatch, capsys, "audit", "--before", *sets, *priced)
    assert code == 1
    assert "go on?" in err
    assert "pairs of work in their known order" not in out
    # A model served without a key costs nothing: what it takes is said, and it is asked.
    code, out, err = mappa(monkeypatch, capsys, "audit", "--before", *sets)
    assert "openai judge: about" in err
    assert "go on?" not in err
    assert "pairs of work in their known order" in out


def test_rubrics_are_linted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = mappa(monkeypatch, capsys, "rubric", "lint")
    assert (code, out) == (0, "6 rubric sets: task types are treated alike\n")
    source = Path(__file__).parents[3] / "mappa_core/coach/rubrics/dsbench/paper-1/analyst.yaml"
    unfair = source.read_text().replace("otherwise: 3", "otherwise: 4", 1)
    (tmp_path / "analyst.yaml").write_text(unfair)
    code, out, _ = mappa(monkeypatch, capsys, "rubric", "lint", "dsbench", str(tmp_path))
    assert code == 1
    assert "task types differ in their caps of the metric's scale" in out
    code, _, err = mappa(monkeypatch, capsys, "rubric", "lint", "nobody")
    assert code == 2
    assert err.count("\n") == 1


def test_a_dry_run_says_what_the_coach_will_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    model = ("coach.backend=gemini", "coach.model=m", "coach.prices.output_usd=2.5")
    code, out, err = mappa(monkeypatch, capsys, "train", "--dry-run", *model)
    assert code == 0
    # 10 iterations x 12 problems x 4 episodes x 3 agents.
    assert "coach m: about 1,440 calls" in err
    assert "dollars" in err
    assert "dollars" not in out.replace("dollars: null", "")
    _, _, err = mappa(monkeypatch, capsys, "train", "--dry-run")
    assert "costs nothing" in err
    for wrong in (("--dry-run", "--resume", "r"), ("--like", "r")):
        code, _, err = mappa(monkeypatch, capsys, "train", *wrong)
        assert (code, err.count("\n")) == (2, 1)


def test_a_dry_run_refuses_what_the_rule_coach_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("train.json", "held_out.json")]
    for number, file in enumerate(files):
        problem = {"prompt": f"Find the bases $b > {number}$ of $17_b$.", "answer": "70"}
        file.write_text(json.dumps([problem]))
    asked = ("train", "--dry-run", "problems.source=json", "rollout.problems=1")
    asked += (f"problems.train_files=[{files[0]}]", f"problems.held_out_files=[{files[1]}]")
    model = ("coach.backend=gemini", "coach.model=m")
    for coaches in ((), (*model, "coach.second.share=0.5")):
        code, _, err = mappa(monkeypatch, capsys, *asked, *coaches)
        assert (code, err.count("\n")) == (2, 1)
        assert "the rule coach cannot read 1 of 1 problems" in err
    assert mappa(monkeypatch, capsys, *asked, *model)[0] == 0


def test_a_dry_run_refuses_caps_by_what_the_coach_is_not_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("train", "--dry-run", "--config", "dsbench", "coach.backend=gemini", "coach.model=m")
    code, _, err = mappa(monkeypatch, capsys, *asked)
    assert (code, err.count("\n")) == (2, 1)
    assert err.endswith("set coach.visibility.analyst=outcome_only\n")
    code, _, err = mappa(monkeypatch, capsys, *asked, "coach.visibility.analyst=outcome_only")
    assert code == 0
    assert "coach m: about" in err


def test_a_dry_run_needs_neither_the_problem_files_nor_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    code, out, err = mappa(monkeypatch, capsys, "train", "--dry-run", "--config", "mathchat")
    assert code == 0
    assert "gemini-2.5-flash" in out
    assert err == (
        "coach: no forecast without the problems: problem file data/AIME_1983_2024.json cannot be "
        "read: No such file or directory\n"
    )


def test_a_dry_run_can_go_by_the_habits_of_an_earlier_run(
    episode: Episode,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    command = ("train", "--dry-run", "coach.backend=gemini", "coach.model=m")

    def tokens(*arguments: str) -> int:
        code, _, err = mappa(monkeypatch, capsys, *command, *arguments)
        assert code == 0, err
        found = re.search(r"about 1,440 calls, ([0-9,]+) tokens", err)
        assert found is not None, err
        return int(found[1].replace(",", ""))

    # Its agents wrote a few words where half of a token budget would be assumed.
    assert tokens("--like", "quickstart-1") < tokens()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("coach.backend=gemini",), "needs a model"),
        (("coach.backend=gemini", "coach.model=m"), "GOOGLE_API_KEY"),
        (("coach.backend=wit",), "coach.backend=wit"),
    ],
)
def test_a_coach_that_cannot_answer_is_bad_input(
    overrides: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    code, _, err = mappa(monkeypatch, capsys, "train", *overrides)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "home").exists()


KEY = "AIza-a-key-that-nobody-may-see"


def test_a_key_is_in_no_command_line_output_or_row_of_a_real_process(
    stand_in: str, episode: Episode, store: Store, database_url: str
) -> None:
    overrides = (f"coach.base_url={stand_in}", "coach.attempt_seconds=30")
    command = ["rescore", "quickstart-1", "--coach", "gemini:m", "--yes", *overrides]
    seen: set[str] = set()
    with psutil.Popen(
        [sys.executable, "-c", "from mappa_cli.main import main; main()", *command],
        env={**os.environ, "MAPPA_DATABASE_URL": database_url, "GOOGLE_API_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        while process.poll() is None:
            with suppress(psutil.Error):
                for one in (process, *process.children(recursive=True)):
                    seen.add(Path(f"/proc/{one.pid}/cmdline").read_text())
            time.sleep(0.02)
        printed = process.stdout.read()
        assert process.returncode == 0, printed
    assert any("gemini:m" in line for line in seen)
    assert not any(KEY in line for line in seen)
    assert KEY not in printed
    scored = [
        entry
        for entry in store.scores.scores_of_episode(episode.id)
        if entry.score.request is not None
    ]
    assert len(scored) == 3
    assert KEY not in repr(scored)
    assert KEY not in repr(store.runs.get_run("quickstart-1"))
    assert httpx.get(f"{stand_in}/log", trust_env=False).json()["keys_in_urls"] == 0
