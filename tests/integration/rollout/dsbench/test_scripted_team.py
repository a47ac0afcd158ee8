"""Scripted agents through the real sandbox: the file trail says whose fault it was.

No model is here; team, sandbox, workspaces, grader, store and rule coach are the real ones.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import text

from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.coach.scoring import ScorePlan, score_episode
from mappa_core.core.errors import WorkspaceError
from mappa_core.core.file_trail import files_after, who_failed
from mappa_core.core.records.episodes import Action, Episode, Observation, StopReason
from mappa_core.core.records.scores import CoachScore
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.episode import EpisodeRecords, new_episode, play_episode
from mappa_core.rollout.episode_files import EpisodeFiles
from mappa_core.rollout.problems.tabular import bundled_task
from mappa_core.rollout.problems.tabular_recipes import RECIPES
from mappa_core.rollout.problems.tasks import Task, TaskProblems
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import duties_of
from mappa_core.store.connection import connect
from mappa_core.store.store import Store
from tests.backends import open_backend
from tests.builders import make_policy, make_run, make_turn
from tests.fakes.acting import ScriptedRunner

TEAM = load_team("dsbench", "small-1")
DUTIES = duties_of(TEAM)
RUN = make_run("dsbench")
LIMITS = Limits(memory_bytes=2**30, processes=64, wall_seconds=60, cpu_seconds=30)


def example(agent: str) -> str:
    """The worked example that the agent's prompt shows: a correct program for any task."""
    return TEAM.prompts.prompts[agent].opening[2].content


CORRECT: Mapping[str, tuple[str, ...]] = {
    "data_engineer": (example("data_engineer"),),
    "modeler": (example("modeler"),),
    "analyst": (example("analyst"),),
}
FORGETFUL_ENGINEER = "\n".join(
    line for line in example("data_engineer").split("\n") if "X_test.pkl" not in line
)
FAULTY_ANALYST = example("analyst").replace("index=False", "index=True")
DONE = "DONE"
SILENT_ANALYST = "```python\nprint('I predict that all will be well')\n```"


@dataclass(frozen=True)
class Played:
    episode: Episode
    scores: dict[int, CoachScore]

    @property
    def agents(self) -> list[str]:
        return [turn.agent for turn in self.episode.turns]

    def read_in(self, index: int) -> set[str]:
        result = self.episode.turns[index].tool_result
        assert result is not None
        assert result.read is not None
        return {file.name for file in result.read}

    def written_in(self, index: int) -> set[str]:
        result = self.episode.turns[index].tool_result
        assert result is not None
        return {file.name for file in result.written}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sandbox(loop: asyncio.Runner) -> Iterator[Sandbox]:
    chosen = loop.run(open_backend("bubblewrap", 1, "data-science"))
    yield chosen
    loop.run(chosen.close())


def task_of(name: str) -> Task:
    return bundled_task(next(recipe for recipe in RECIPES if recipe.name == name), 0)


CULPRIT = """
WITH duty (position, agent, name) AS (VALUES
    (1, 'data_engineer', 'X_train.pkl'), (2, 'data_engineer', 'y_train.pkl'),
    (3, 'data_engineer', 'X_test.pkl'), (4, 'modeler', 'model.pkl'),
    (5, 'analyst', 'submission.csv'))
SELECT agent, name FROM duty WHERE NOT EXISTS (
    SELECT FROM audit.file_trail AS trail
    WHERE trail.name = duty.name AND trail.agent = duty.agent AND trail.use = 'written')
ORDER BY position LIMIT 1
"""


def select(url: str, query: str) -> list[tuple[str, ...]]:
    engine = connect(url, pool_size=1)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return rows


def culprit(url: str) -> tuple[str, ...] | None:
    """Who should have left which file first and did not, by SQL alone."""
    return next(iter(select(url, CULPRIT)), None)


class Stage:
    """One run in the store, on which scripted teams play."""

    def __init__(self, store: Store, sandbox: Sandbox, folder: Path, loop: asyncio.Runner) -> None:
        self.store, self.sandbox, self.loop, self.folder = store, sandbox, loop, folder
        store.runs.add_run(RUN)
        for agent in TEAM.agents:
            store.policies.add_policy_version(make_policy(RUN, agent.name))

    def play(
        self, script: Mapping[str, tuple[str, ...]], task: str = "iris", rollout: int = 0
    ) -> Played:
        chosen = task_of(task)
        self.store.episodes.add_problems([chosen.problem])
        files = EpisodeFiles(TaskProblems([chosen], []), self.folder)
        episode = new_episode(RUN.id, "train", 1, chosen.problem, rollout)
        return self.loop.run(self._play(episode, script, files))

    async def _play(
        self, episode: Episode, script: Mapping[str, tuple[str, ...]], files: EpisodeFiles
    ) -> Played:
        def act(current: Episode, observation: Observation) -> Action:
            lines = script[observation.agent]
            text = lines[min(len(current.turns_of(observation.agent)), len(lines) - 1)]
            policy = make_policy(RUN, observation.agent)
            return make_turn(policy, len(current.turns), text=text).action

        runner = ScriptedRunner(act=act, sandbox=self.sandbox, limits=LIMITS, files=files)
        played = await play_episode(
            episode, team=TEAM, records=EpisodeRecords(self.store), runner=runner, files=files
        )
        plan = ScorePlan(coach=RuleCoach("dsbench"), duties=DUTIES)
        entries = await score_episode(played, plan=plan, store=self.store)
        scores = {e.turn_index: e.score for e in entries if isinstance(e.score, CoachScore)}
        return Played(episode=played, scores=scores)


@pytest.fixture
def stage(store: Store, sandbox: Sandbox, tmp_path: Path, loop: asyncio.Runner) -> Stage:
    return Stage(store, sandbox, tmp_path, loop)


def test_a_correct_team_hands_on_its_files_and_succeeds(stage: Stage, database_url: str):
    script = CORRECT | {"modeler": (TEAM.prompts.prompts["modeler"].opening[4].content,)}
    played = stage.play(script)
    episode = played.episode
    assert played.agents == ["data_engineer", "modeler", "analyst"]
    assert episode.stop_reason is StopReason.ANSWERED
    assert episode.outcome is not None
    assert episode.outcome.detail is None
    assert episode.outcome.metric == "accuracy"
    assert (episode.outcome.value or 0) > 0.85
    assert episode.outcome.success
    assert 0.8 < (episode.outcome.skill or 0) <= 1
    assert played.read_in(0) == {"train.csv", "test.csv", "sample_submission.csv"}
    assert played.written_in(0) == {"X_train.pkl", "y_train.pkl", "X_test.pkl"}
    assert played.read_in(1) == {"X_train.pkl", "y_train.pkl"}
    assert played.read_in(2) == {"model.pkl", "X_test.pkl", "sample_submission.csv"}
    assert who_failed(DUTIES, episode.turns) is None
    assert {index: score.value for index, score in played.scores.items()} == {0: 10, 1: 10, 2: 10}

    # The whole trail is in the store, byte for byte, and reads back as it was played.
    assert stage.store.episodes.get_episode(str(episode.id)) == episode
    query = (
        "SELECT agent, use, name FROM audit.file_trail WHERE name = 'model.pkl' ORDER BY turn_index"
    )
    assert culprit(database_url) is None
    rows = select(database_url, query)
    assert rows == [("modeler", "written", "model.pkl"), ("analyst", "read", "model.pkl")]


@pytest.mark.slow
def test_several_targets_and_missing_values_are_no_trouble(stage: Stage):
    played = stage.play(CORRECT, task="twins")
    assert played.episode.outcome is not None
    assert played.episode.outcome.metric == "mcrmse"
    assert played.episode.outcome.success
    holes = stage.play(CORRECT, task="friedman1")
    assert holes.episode.outcome is not None
    assert holes.episode.outcome.success


def test_the_trail_names_an_engineer_that_forgets_a_file(stage: Stage, database_url: str):
    script = {"data_engineer": (FORGETFUL_ENGINEER, DONE), "analyst": (*CORRECT["analyst"], DONE)}
    played = stage.play(CORRECT | script, task="diabetes")
    episode = played.episode
    assert played.agents == ["data_engineer"] * 2 + ["modeler"] + ["analyst"] * 2
    failing = who_failed(DUTIES, episode.turns)
    assert failing is not None
    assert (failing.agent, failing.missing) == ("data_engineer", ("X_test.pkl",))
    assert culprit(database_url) == ("data_engineer", "X_test.pkl")
    assert episode.stop_reason is StopReason.MAX_TURNS
    assert episode.outcome is not None
    assert episode.outcome.detail == "there is no submission.csv"
    assert (episode.outcome.success, episode.outcome.skill) == (False, 0.0)
    assert episode.outcome.charged is not None
    assert played.scores[1].value == 0
    # The engineer pays, the modeler is not blamed, the analyst less than for its own mistake.
    assert played.scores[0].value == 4
    assert "X_test.pkl is not there" in played.scores[0].rationale
    assert played.scores[2].value == 10
    result = episode.turns[3].tool_result
    assert result is not None
    assert result.status is ToolStatus.NONZERO
    assert played.scores[3].value == 4
    assert "Data_engineer should have left X_test.pkl" in played.scores[3].rationale
    feedback = episode.turns[1].observation.messages[-1].content
    assert "Missing: X_test.pkl. Turns left: 3." in feedback


def test_the_trail_names_an_analyst_that_submits_nothing(stage: Stage, database_url: str):
    played = stage.play(CORRECT | {"analyst": (SILENT_ANALYST, DONE)}, task="diabetes")
    assert played.agents == ["data_engineer", "modeler", "analyst", "analyst"]
    failing = who_failed(DUTIES, played.episode.turns)
    assert failing is not None
    assert (failing.agent, failing.missing) == ("analyst", ("submission.csv",))
    assert culprit(database_url) == ("analyst", "submission.csv")
    assert [played.scores[index].value for index in range(3)] == [10, 10, 4]
    assert "reads nothing of what modeler left" in played.scores[2].rationale


@pytest.mark.slow
def test_an_analyst_with_a_wrong_form_is_told_by_the_grader_why(stage: Stage):
    played = stage.play(CORRECT | {"analyst": (FAULTY_ANALYST,)}, task="diabetes")
    outcome = played.episode.outcome
    assert outcome is not None
    assert outcome.detail == "its columns are , id, progression, not id, progression"
    assert (outcome.success, outcome.value, outcome.skill) == (False, None, 0.0)


@pytest.mark.slow
def test_an_old_submission_is_known_to_be_old(stage: Stage):
    broken = "```python\nraise SystemExit('no time left')\n```"
    partly = (
        example("analyst")
        .replace("\n```", "\nraise SystemExit(1)\n```")
        .replace("```python", "```python", 1)
    )
    assert partly.count("SystemExit") == 1
    played = stage.play(CORRECT | {"analyst": (partly, broken)}, task="diabetes")
    assert played.agents[-4:] == ["analyst"] * 4
    old = files_after(played.episode.turns)["submission.csv"]
    assert old.turn == 2
    assert old.stale == "the program of turn 4 failed before writing it"
    outcome = played.episode.outcome
    assert outcome is not None
    assert outcome.detail == f"stale: {old.stale}"
    assert "submission.csv (old: " in _files_line(played)
    assert played.scores[3].value == 2


def _files_line(played: Played) -> str:
    known = load_team("dsbench", "paper-1")
    episode = replace(played.episode, turns=played.episode.turns[:-1])
    observation = known.next_observation(episode)
    assert observation is not None
    return observation.messages[-1].content


@pytest.mark.slow
def test_a_resumed_episode_goes_on_with_the_files_of_its_recorded_turns(
    stage: Stage, tmp_path: Path
):
    whole = stage.play(CORRECT, task="diabetes").episode
    # As after a crash in the analyst's turn: two turns recorded, the folder in any state.
    cut = replace(new_episode(RUN.id, "train", 1, whole.problem, 1), turns=whole.turns[:2])
    files = EpisodeFiles(TaskProblems([task_of("diabetes")], []), tmp_path)
    with pytest.raises(WorkspaceError, match="MAPPA_HOME"):
        files.open(cut)
    again = replace(cut, id=whole.id)
    for _ in range(2):
        folder = files.open(again)
        names = {path.name for path in folder.iterdir()}
        assert {"model.pkl", "X_test.pkl", "train.csv"} <= names
        assert "submission.csv" not in names
        assert (folder / "train.csv").read_bytes().startswith(b"id,age")
        (folder / "rubbish").write_text("of a turn that never ended")


@pytest.mark.slow
def test_no_file_of_a_workspace_holds_the_labels(stage: Stage):
    stage.play(CORRECT, task="diabetes")
    hidden = set(task_of("diabetes").labels().splitlines()[1:])
    kept = [path.read_bytes() for path in stage.folder.glob("contents/*/*")]
    assert len(kept) >= 7
    assert not any(hidden & set(data.splitlines()) for data in kept)
