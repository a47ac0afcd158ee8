"""A training run whose coach dies in the middle ends with the scores of an undisturbed one."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import yaml

from flows.train import train
from mappa_cli.provider_stub.script import Fault, Question, Script, no_faults
from mappa_cli.provider_stub.server import ProviderStub, serving
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.coach.budget import Budget
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.providers.gemini import gemini_provider
from mappa_core.coach.providers.local import open_provider
from mappa_core.coach.rubrics import RubricSet, load_rubrics
from mappa_core.core.errors import CoachError
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored
from mappa_core.core.settings import Settings
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.tiny_model import save_tiny_judge

PROBLEM_SOLVER = (
    Path(__file__).parents[2] / "mappa_core/coach/rubrics/mathchat/paper-1/problem_solver.yaml"
)


@pytest.fixture
def rubric_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "speaker-1"
    folder.mkdir()
    words = yaml.safe_load(PROBLEM_SOLVER.read_text()) | {"agent": "speaker"}
    (folder / "speaker.yaml").write_text(yaml.safe_dump(words))
    return folder


@pytest.fixture
def rubrics(rubric_folder: Path) -> RubricSet:
    return load_rubrics("monologue", str(rubric_folder))


@pytest.fixture
def config(toy_config: TrainConfig) -> TrainConfig:
    shorter = toy_config.rollout.model_copy(update={"iterations": 1, "episodes_per_problem": 4})
    return toy_config.model_copy(update={"rollout": shorter})


@dataclass
class DiesAt:
    """Unavailable from the n-th call on, for a while or (None) for good."""

    call: int
    seconds: float | None
    refused: int = 0
    back_at: float | None = None

    def __call__(self, question: Question, number: int) -> Fault:
        loop = asyncio.get_running_loop()
        if number == self.call and self.seconds is not None:
            self.back_at = loop.time() + self.seconds
        down = number >= self.call and (self.back_at is None or loop.time() < self.back_at)
        self.refused += down
        return Fault.UNAVAILABLE if down else Fault.NONE


@dataclass(frozen=True)
class Trainer:
    """Trains against a stand-in with the given script."""

    make_services: MakeServices
    config: TrainConfig
    rubrics: RubricSet

    def __call__(
        self, script: Script, *, resume: str | None = None, deadline_seconds: float = 60.0
    ) -> ProviderStub:
        async def body() -> ProviderStub:
            stand_in = ProviderStub(script)
            async with serving(stand_in) as address:
                settings = CoachModelConfig.model_validate(
                    {
                        "backend": "gemini",
                        "model": "m",
                        "base_url": address,
                        "deadline_seconds": deadline_seconds,
                    }
                )
                provider = gemini_provider(settings, "key")
                coach = LlmCoach(provider, self.rubrics, settings, Budget(self.config.coach.budget))
                services = self.make_services(self.config, coach)
                await services.engine.start()
                try:
                    with use(services):
                        await train(self.config, resume)
                finally:
                    await coach.close()
            return stand_in

        return asyncio.run(body())


@pytest.fixture
def trainer(make_services: MakeServices, config: TrainConfig, rubrics: RubricSet) -> Trainer:
    return Trainer(make_services, config, rubrics)


Scored = dict[tuple[int, str, int], float | str]


def scored_set(store: Store) -> Scored:
    """What trained the newest run, by where it stands."""
    (run, *_) = store.runs.list_runs()
    found: Scored = {}
    for summary in store.episodes.list_episodes(run.id):
        episode = store.episodes.get_episode(str(summary.id))
        for entry in store.scores.scores_of_episode(episode.id):
            if entry.trained:
                place = (episode.iteration, episode.problem.statement, episode.rollout_index)
                score = entry.score
                found[place] = score.reason if isinstance(score, Unscored) else score.value
    return found


def weights(store: Store) -> list[str]:
    (run, *_) = store.runs.list_runs()
    return [checkpoint.sha256 for _, checkpoint in store.policies.list_checkpoints(run.id)]


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(1.5, id="short"), pytest.param(120.0, id="two-minutes", marks=pytest.mark.slow)],
)
def test_an_outage_in_the_middle_changes_nothing(
    seconds: float, store: Store, trainer: Trainer
) -> None:
    undisturbed = trainer(no_faults)
    expected, trained = scored_set(store), weights(store)
    assert len(expected) == 8
    script = DiesAt(call=undisturbed.log.calls // 2, seconds=seconds)
    began = time.monotonic()
    disturbed = trainer(script, deadline_seconds=max(60.0, 5 * seconds))
    assert time.monotonic() - began > seconds
    assert script.refused > 0
    assert disturbed.log.calls == undisturbed.log.calls + script.refused
    assert scored_set(store) == expected
    assert weights(store) == trained


def test_a_dead_coach_stops_the_run_and_resuming_asks_only_for_what_is_missing(
    store: Store, trainer: Trainer
) -> None:
    undisturbed = trainer(no_faults)
    expected, trained = scored_set(store), weights(store)
    with pytest.raises(CoachError, match="unscored"):
        trainer(DiesAt(call=undisturbed.log.calls * 3 // 4, seconds=None), deadline_seconds=0.3)
    (broken, *_) = store.runs.list_runs()
    assert broken.status is RunStatus.FAILED
    before = scored_set(store)
    missing = sum(value == "error" for value in before.values())
    assert missing > 0
    resumed = trainer(no_faults, resume=str(broken.id))
    (run, *_) = store.runs.list_runs()
    assert (run.id, run.status) == (broken.id, RunStatus.COMPLETED)
    # Equal actions are asked about once, so at most one call for each that was missing.
    assert 0 < resumed.log.calls <= missing
    assert scored_set(store) == expected
    assert weights(store) == trained


@pytest.mark.slow
def test_what_an_update_left_out_is_not_asked_again(
    store: Store, trainer: Trainer, config: TrainConfig
) -> None:
    lenient = config.model_copy(
        update={"coach": config.coach.model_copy(update={"unscored_limit": 1.0})}
    )
    forgiving = replace(trainer, config=lenient)
    dead = DiesAt(call=3, seconds=None)
    forgiving(dead, deadline_seconds=0.2)
    (run, *_) = store.runs.list_runs()
    before = scored_set(store)
    resumed = forgiving(no_faults, resume=str(run.id))
    assert resumed.log.calls == 0
    assert scored_set(store) == before


@dataclass
class Killing:
    """A local coach whose server is killed under the third case of each of two iterations."""

    coach: LlmCoach
    asked: int = 0

    @property
    def identity(self) -> CoachIdentity:
        return self.coach.identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.asked += 1
        if self.asked not in (3, 11):
            return await self.coach.score(case)
        (engine,) = (
            process
            for process in psutil.Process().children(recursive=True)
            if "VLLM::EngineCore" in process.cmdline()
        )
        # It may not be through with its cases when it is killed, however fast the machine is.
        os.kill(engine.pid, signal.SIGSTOP)
        under_way = asyncio.ensure_future(self.coach.score(case))
        await asyncio.sleep(0.5)
        # Once it loses its engine, and once it is gone altogether.
        os.kill(engine.pid if self.asked < 11 else engine.ppid(), signal.SIGKILL)
        return await under_way


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_local_coach_whose_server_is_killed_loses_no_score(
    store: Store,
    make_services: MakeServices,
    config: TrainConfig,
    rubrics: RubricSet,
    tmp_path: Path,
) -> None:
    twice = config.model_copy(
        update={
            "rollout": config.rollout.model_copy(update={"iterations": 2}),
            # What is missing is to be seen below, with its reason.
            "coach": config.coach.model_copy(update={"unscored_limit": 1.0}),
        }
    )
    judge = CoachModelConfig.model_validate(
        {
            "backend": "local",
            "model": str(save_tiny_judge(tmp_path / "judge")),
            "max_output_tokens": 200,
            "attempt_seconds": 300,
            "server": {
                "calls": 4,
                "rationale_characters": 60,
                "kv_cache_gib": 0.25,
                "max_model_length": 16384,
                "device": "cpu",
            },
        }
    )

    async def body() -> Killing:
        settings = Settings.model_validate({"MAPPA_HOME": tmp_path / "home"})
        budget = Budget(twice.coach.budget)
        coach = LlmCoach(open_provider(judge, settings), rubrics, judge, budget)
        killing = Killing(coach)
        services = make_services(twice, killing)
        try:
            await coach.start()
            await services.engine.start()
            with use(services):
                await train(twice)
        finally:
            await coach.close()
        return killing

    assert asyncio.run(body()).asked == 16
    (run,) = store.runs.list_runs()
    assert run.status is RunStatus.COMPLETED
    played = [one for one in store.episodes.list_episodes(run.id) if one.phase == "train"]
    entries = [store.scores.scores_of_episode(one.id) for one in played]
    # One score for each action: none is missing, none was stored twice.
    assert [len(each) for each in entries] == [1] * 16
    scores = [entry.score for (entry,) in entries]
    assert [score for score in scores if isinstance(score, Unscored)] == []
    assert max(score.attempts for score in scores) > 1
