"""CSV files in DSBench's layout through `train` to its end.

What the agents say is written here, and its log-probs are the served weights'. Problem source,
files, sandbox, grading, rule coach, learner and store are those of any run.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import torch
from transformers import AutoTokenizer

from flows.train import train
from mappa_core.app.checks import check_inputs
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.core.records.episodes import (
    MEASURED,
    Completion,
    Episode,
    FinishReason,
    GenerationRequest,
)
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachScore
from mappa_core.core.settings import Settings
from mappa_core.evaluate.comparison import Comparison
from mappa_core.rollout.engines.transformers.engine import TransformersEngine
from mappa_core.rollout.episode_files import open_files
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.protocols import ProblemSource
from mappa_core.rollout.teams import load_team
from mappa_core.store.store import Store
from tests.backends import open_backend
from tests.dsbench_layout import Layout
from tests.e2e.conftest import MakeServices

TEAM = load_team("dsbench", "small-1")
DONE = "DONE"
GIVEN = {"train.csv", "test.csv", "sample_submission.csv"}
PLAYED = {
    "iris": ("accuracy", "classification"),
    "diabetes": ("rmse", "regression"),
    "friedman3": ("r2", "regression"),
}
LEARNT, HELD_OUT = ("iris", "diabetes"), ("friedman3",)


class WritingEngine(TransformersEngine):
    """Serves policies like any other, and lets agents say what is right after an update.

    Before it, they say nothing when measured; in training, each problem's second Analyst hands
    nothing in.
    """

    def __init__(
        self, model: Path, config: TrainConfig, ends: tuple[int, ...], problems: ProblemSource
    ) -> None:
        super().__init__(model, config.engine, ends)
        self._tokenizer, self._end = AutoTokenizer.from_pretrained(model), ends[0]
        played = (*problems.train(), *problems.held_out())
        self._kinds = {problem.id: problem.task_type for problem in played}
        self._analysed: set[UUID] = set()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Say the agent's line, by the weights that are served for it."""
        served, model = self._served[request.policy.agent]
        assert served == request.policy
        said = self._tokenizer.encode(self._line(request), add_special_tokens=False)
        ids_said = torch.tensor([*said, self._end])
        read = torch.tensor([[*request.prompt_token_ids, *ids_said.tolist()]])
        with torch.inference_mode():
            logits = model(input_ids=read, logits_to_keep=len(ids_said) + 1).logits[0, :-1]
        temperature = request.sampling.temperature or 1.0
        logprobs = (logits.float() / temperature).log_softmax(-1)
        return Completion(
            token_ids=tuple(ids_said.tolist()),
            logprobs=tuple(logprobs.gather(-1, ids_said[:, None])[:, 0].tolist()),
            finish_reason=FinishReason.STOP,
            seconds=0.01,
        )

    def _line(self, request: GenerationRequest) -> str:
        agent, problem = request.policy.agent, request.problem_id
        assert problem is not None
        if request.policy.step == 0:
            if request.sampling.temperature == 0:
                return DONE
            if agent == "analyst" and problem in self._analysed:
                return DONE
            if agent == "analyst":
                self._analysed.add(problem)
        return program(agent, self._kinds[problem])


def program(agent: str, kind: str) -> str:
    """A worked example of the agent's prompt, which is right for any task of this kind."""
    classifies = agent == "modeler" and kind == "classification"
    return TEAM.prompts.prompts[agent].opening[4 if classifies else 2].content


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> TrainConfig:
    layout = Layout(tmp_path)
    for name in PLAYED:
        layout.add_bundled(name)
    return TrainConfig.model_validate(
        {
            "name": "published",
            "team": "dsbench",
            "prompts": "small-1",
            "model": str(tiny_model),
            "problems": layout.config(LEARNT, HELD_OUT),
            "rollout": {"iterations": 1, "problems": 2, "episodes_per_problem": 2},
            "engine": {
                "backend": "transformers",
                "device": "cpu",
                "dtype": "float32",
                "max_model_length": 8192,
            },
            "sandbox": {
                "runtime": "data-science",
                "concurrency": 2,
                "wall_seconds": 60,
                "memory_mib": 1024,
            },
            "learner": {"device": "cpu", "dtype": "float32", "lora": {"rank": 4, "alpha": 8}},
            "coach": {"exam": "never"},
            "evaluation": {"temperature": 0.0},
        }
    )


def trained(config: TrainConfig, services: Services) -> Comparison:
    """The run's end, with the programs of its agents in the real sandbox."""

    async def body() -> Comparison:
        sandbox = await open_backend("bubblewrap", 2, "data-science")
        try:
            await services.engine.start()
            with use(replace(services, sandbox=sandbox)):
                return await train(config)
        finally:
            await sandbox.close()

    return asyncio.run(body())


def test_tasks_in_the_published_layout_are_played_measured_scored_and_learnt_from(
    config: TrainConfig,
    make_services: MakeServices,
    store: Store,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    team = check_inputs(config, Settings())
    problems = problem_source(config.problems, config.sandbox.workspace_mib)
    services = make_services(config, RuleCoach("dsbench"))
    ends = services.tokenizer.end_token_ids
    comparison = trained(
        config,
        replace(
            services,
            team=team,
            problems=problems,
            files=open_files(team, problems, tmp_path / "workspaces"),
            engine=WritingEngine(tiny_model, config, ends, problems),
        ),
    )
    assert (comparison.before, comparison.after) == (0, 1)
    (run,) = store.runs.list_runs()
    assert run.status is RunStatus.COMPLETED
    summaries = store.episodes.list_episodes(run.id)
    episodes = [store.episodes.get_episode(str(each.id)) for each in summaries]
    train_played = [each for each in episodes if each.phase == "train"]
    assert sorted(map(task_of, train_played)) == ["diabetes", "diabetes", "iris", "iris"]
    for episode in episodes:
        check_measured(episode)
    # Of each task one team handed in, and one did not.
    assert sorted((task_of(each), has_handed_in(each)) for each in train_played) == [
        ("diabetes", False),
        ("diabetes", True),
        ("iris", False),
        ("iris", True),
    ]
    for episode in train_played:
        check_scored(episode, store)
    for agent in TEAM.agents:
        update = store.updates.get_update(run.id, agent.name, 1)
        assert update is not None
        # The two who always did their work well learn nothing from that; the Analyst does.
        assert len(update.entries) == 4
        advantages = {entry.advantage or 0.0 for entry in update.entries}
        assert (max(advantages) > 0 > min(advantages)) == (agent.name == "analyst")


def task_of(episode: Episode) -> str:
    """The task's folder."""
    return episode.problem.statement.rpartition("Competition: ")[2]


def has_handed_in(episode: Episode) -> bool:
    """Whether its Analyst wrote a submission."""
    return episode.turns[-1].action.text != DONE


def check_measured(episode: Episode) -> None:
    """Its outcome is by its task's metric, and of the submission that it handed in."""
    metric, kind = PLAYED[task_of(episode)]
    assert (episode.problem.dataset, episode.problem.task_type) == ("dsbench", kind)
    outcome = episode.outcome
    assert outcome is not None
    assert outcome.metric == metric
    assert tuple(figure.name for figure in outcome.figures or ()) == MEASURED[kind]
    if has_handed_in(episode):
        assert outcome.success
        assert outcome.value is not None
        assert 0 < (outcome.skill or 0) < 1
        assert all(figure.value is not None for figure in outcome.figures or ())
        check_files(episode)
    else:
        assert (outcome.success, outcome.value, outcome.skill) == (False, None, 0.0)
        assert outcome.detail == "there is no submission.csv"
        assert all(figure.value is None for figure in outcome.figures or ())


def check_files(episode: Episode) -> None:
    """Each agent read what it was left, and left what it owes."""
    used = [
        ({file.name for file in result.read or ()}, {file.name for file in result.written})
        for result in (turn.tool_result for turn in episode.turns)
        if result is not None
    ]
    assert used == [
        (GIVEN, {"X_train.pkl", "y_train.pkl", "X_test.pkl"}),
        ({"X_train.pkl", "y_train.pkl"}, {"model.pkl"}),
        ({"model.pkl", "X_test.pkl", "sample_submission.csv"}, {"submission.csv"}),
    ]


def check_scored(episode: Episode, store: Store) -> None:
    """Each action has one score, by the rules."""
    entries = {entry.turn_index: entry for entry in store.scores.scores_of_episode(episode.id)}
    assert [turn.agent for turn in episode.turns] == [agent.name for agent in TEAM.agents]
    for turn in episode.turns:
        entry = entries.pop(turn.index)
        assert isinstance(entry.score, CoachScore)
        assert entry.trained
        assert entry.score.value == (0 if turn.action.text == DONE else 10)
    assert not entries
