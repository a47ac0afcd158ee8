"""What the quickstart's bench says of a finished run that a language model coached."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mappa_cli.benches.quickstart import bench_quickstart, read_result
from mappa_core.app.checks import coached_team
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.audit.exam.sitting import marked, set_paper
from mappa_core.audit.store import AuditStore
from mappa_core.core.records.episodes import Outcome, Problem, StopReason
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    CoachRequest,
    CoachScore,
    Unscored,
)
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams import load_team
from mappa_core.store.store import Store
from tests.builders import (
    RULE_COACH,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_turn,
)

OVERRIDES = ("rollout.iterations=1", "problems.held_out_size=3", "evaluation.samples=1")
REQUEST = CoachRequest(system="Judge.", prompt="The case.", settings={"model": "judge"})
SCORED = CoachScore(
    value=5.0, rationale="so", request=REQUEST, attempts=1, prompt_tokens=100, reply_tokens=20
)
LATE = Unscored(
    reason="timeout", detail="late", request=REQUEST, attempts=1, prompt_tokens=100, reply_tokens=20
)
ACTIONS, LOST = 40, 1
MINUTES = 10
TYPES = ("addition", "subtraction")
POINTS = {"addition": 7.0, "subtraction": 3.0}
"""What the coach gives for the same work."""
IDENTITY = replace(RULE_COACH, coach="local", model="judge")


@dataclass(frozen=True)
class Sitting:
    """Who sat the exam."""

    identity: CoachIdentity = IDENTITY

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        raise AssertionError(case)


def store_exam(store: Store, config: TrainConfig) -> None:
    """Store an exam in which right work got 9 points and all other 3; the last case has none."""
    team = load_team(config.team, config.prompts, config.rollout)
    paper = set_paper(team, coached_team(team), config.coach)
    *scored, last = paper.cases
    right = {each.case: 9.0 if each.work == "right" else 3.0 for each in scored}
    given = {case: replace(SCORED, value=value) for case, value in right.items()}
    AuditStore(store.database).add([marked(Sitting(), paper, {**given, last.case: LATE})])


def store_run(store: Store) -> None:
    """Store a run of ten minutes: 40 training actions, one unscored, 120 tokens a score."""
    config = load_config(Path("quickstart_llm_coach"), [*OVERRIDES, "seed=1"])
    begun = datetime.now(UTC) - timedelta(minutes=MINUTES)
    run = make_run("quickstart-llm-coach-1", started_at=begun)
    run = replace(run, config=config.model_dump(mode="json"))
    store.runs.add_run(run)
    problems = [make_problem(f"What is {number} + 3?") for number in range(3)]
    store.episodes.add_problems(problems)
    for step in (0, 1):
        policy = make_policy(run, step=step)
        store.policies.add_policy_version(policy)
        for number, problem in enumerate(problems):
            play_held_out(store, run, problem, step, success=number < 1 + step)
    trained = [
        make_problem(f"What is {number} and 4?", task_type=TYPES[number % 2])
        for number in range(ACTIONS // 2)
    ]
    store.episodes.add_problems(trained)
    for number in range(ACTIONS):
        play_and_score(store, run, trained[number % len(trained)], number)
    store.runs.set_status(run.id, RunStatus.COMPLETED)
    store_exam(store, config)


def play_held_out(store: Store, run: Run, problem: Problem, step: int, *, success: bool) -> None:
    """Store an episode of one action, measured."""
    episode = make_episode(run, problem, phase="held_out", iteration=step)
    store.episodes.open_episode(episode)
    turn = make_turn(make_policy(run, step=step))
    store.episodes.add_turn(episode, turn)
    outcome = Outcome(success=success, answer="5", method="math-verify")
    store.episodes.close_episode(
        episode.with_turn(turn).closed(StopReason.ANSWERED, outcome=outcome)
    )


def play_and_score(store: Store, run: Run, problem: Problem, number: int) -> None:
    """Store a training episode of one action, with its score; the first few have none."""
    episode = make_episode(run, problem, rollout_index=number)
    store.episodes.open_episode(episode)
    turn = make_turn(make_policy(run))
    store.episodes.add_turn(episode, turn)
    value = POINTS[problem.task_type] + number % 3 / 2
    score = LATE if number < LOST else replace(SCORED, value=value)
    store.scores.add_scores([make_score(episode, 0, score, identity=IDENTITY)])
    outcome = Outcome(success=number % 4 < 2, answer="5", method="math-verify")
    store.episodes.close_episode(
        episode.with_turn(turn).closed(StopReason.ANSWERED, outcome=outcome)
    )


def test_a_model_coachs_scores_tokens_and_speed_are_those_of_the_rows(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    store_run(store)
    file = tmp_path / "result.json"
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path, "MAPPA_DATABASE_URL": database_url})
    typed = ("preset=quickstart_llm_coach", "seeds=1", f"file={file}", *OVERRIDES)
    report = bench_quickstart(typed, settings)
    (one,) = read_result(file).results
    assert one.coach is not None
    assert one.coach.model == "qwen2.5-coder-1.5b-instruct"
    assert one.minutes == pytest.approx(MINUTES, abs=2)
    assert (one.coach.scores, one.coach.unscored) == (ACTIONS - LOST, LOST)
    assert one.coach.tokens == ACTIONS * 120
    assert one.coach.exam is not None
    assert (one.coach.exam.asked, one.coach.exam.unscored) == (48, 1)
    assert one.coach.exam.passed
    shares = {line.of: line.share for line in one.coach.exam.lines}
    assert shares["right over wrong"] == 1.0
    # Wrong work is no better than what crashed or praised itself.
    assert one.coach.exam.low < one.coach.exam.share < one.coach.exam.high
    audit = one.coach.audit
    assert audit is not None
    assert audit.verdict == "biased"
    over_all, *_ = audit.found
    assert (over_all.subject, over_all.against, over_all.of) == ("subtraction", "addition", "all")
    assert over_all.low < over_all.points < over_all.high < -3
    assert over_all.sensitivity is not None
    figures = {figure.name: figure for figure in report.figures}
    unscored = figures["seed 1: actions unscored"]
    # One of 40 is above the two of 100 that are allowed.
    assert (unscored.value, unscored.met) == (pytest.approx(2.5), False)
    speed = figures["seed 1: tokens coached over the run"].value
    assert speed == pytest.approx(ACTIONS * 120 / (60 * one.minutes))
    assert figures["seed 1: gain"].value == pytest.approx(100 / 3)
