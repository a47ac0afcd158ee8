"""What an engine does while agents learn: it sleeps, or takes the weights that are new already."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.core.errors import ClusterError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.engines.transformers.engine import TransformersEngine
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import SPEAKER, Monologue


class Diary(list[str]):
    """What happened, repetitions left out."""

    def note(self, what: str) -> None:
        if self[-1:] != [what]:
            self.append(what)


class Sleeper(TransformersEngine):
    """Notes when it plays, sleeps and wakes."""

    diary: Diary

    async def sleep(self) -> None:
        self.diary.note("sleeps")

    async def wake(self) -> None:
        self.diary.note("wakes")

    async def generate(self, request: GenerationRequest) -> Completion:
        self.diary.note("plays")
        return await super().generate(request)


class Student(TorchLearner):
    """Notes when it learns."""

    diary: Diary

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        self.diary.note("learns")
        return super().update(policy, samples, algorithm, total_steps=total_steps, seed=seed)


def test_an_engine_sleeps_while_agents_learn(
    make_services: MakeServices, toy_config: TrainConfig, tiny_model: Path, tmp_path: Path
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 2, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    diary = Diary()
    tokenizer = ChatTokenizer(tiny_model)
    engine = Sleeper(tiny_model, config.engine, tokenizer.end_token_ids)
    learner = Student(tiny_model, tmp_path / "checkpoints", config.learner, threads=1)
    engine.diary = learner.diary = diary
    services = replace(make_services(config), engine=engine, learner=learner)

    async def run() -> None:
        await engine.start()
        with use(services):
            await train(config)

    asyncio.run(run())
    iteration = ["plays", "sleeps", "learns", "wakes"]
    assert diary == [*iteration, *iteration, "plays"]


class Ready(TransformersEngine):
    """Says when it has an agent's new weights."""

    loads_ahead = True
    loaded: dict[str, threading.Event]

    async def load(self, policy: PolicyVersion) -> None:
        await super().load(policy)
        if policy.step == 1:
            self.loaded[policy.agent].set()


class Last(TorchLearner):
    """Waits with the last agent until the engine has the first one's weights, but not for ever."""

    agents: tuple[str, ...]
    loaded: dict[str, threading.Event]
    was_ahead = False

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        if policy.agent == self.agents[-1] and policy.step == 0:
            self.was_ahead = self.loaded[self.agents[0]].wait(20)
        return super().update(policy, samples, algorithm, total_steps=total_steps, seed=seed)


def test_new_weights_are_served_while_the_next_agent_learns(
    make_services: MakeServices, toy_config: TrainConfig, tiny_model: Path, tmp_path: Path
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 2, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    engine = Ready(tiny_model, config.engine, ChatTokenizer(tiny_model).end_token_ids)
    learner = Last(tiny_model, tmp_path / "checkpoints", config.learner, threads=1)
    team = Monologue(agents=(SPEAKER, replace(SPEAKER, name="listener")))
    services = replace(make_services(config), engine=engine, learner=learner, team=team)
    learner.agents = tuple(agent.name for agent in team.agents)
    engine.loaded = learner.loaded = {name: threading.Event() for name in learner.agents}

    async def run() -> None:
        await engine.start()
        with use(services):
            await train(config)

    asyncio.run(run())
    assert learner.was_ahead


class Late(TransformersEngine):
    """Has the second agent's new weights a while after the first one has played with its own."""

    loads_ahead = True
    agents: tuple[str, ...]
    played: asyncio.Event
    was_beside = False
    is_loaded = False
    was_asked_early = False

    async def load(self, policy: PolicyVersion) -> None:
        if policy.agent == self.agents[1] and policy.step == 1:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.played.wait(), 20)
            self.was_beside = self.played.is_set()
            await asyncio.sleep(1)
            self.is_loaded = True
        await super().load(policy)

    async def generate(self, request: GenerationRequest) -> Completion:
        if request.policy.agent == self.agents[1] and request.policy.step == 1:
            self.was_asked_early |= not self.is_loaded
        completion = await super().generate(request)
        if request.policy.agent == self.agents[0] and request.policy.step == 1:
            self.played.set()
        return completion


def test_agents_play_while_the_last_one_s_new_weights_are_loaded(
    make_services: MakeServices, toy_config: TrainConfig, tiny_model: Path
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 2, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    engine = Late(tiny_model, config.engine, ChatTokenizer(tiny_model).end_token_ids)
    team = Monologue(agents=(SPEAKER, replace(SPEAKER, name="listener")))
    services = replace(make_services(config), engine=engine, team=team)
    engine.agents = tuple(agent.name for agent in team.agents)

    async def run() -> None:
        engine.played = asyncio.Event()
        await engine.start()
        with use(services):
            await train(config)

    asyncio.run(run())
    assert engine.was_beside
    assert engine.is_loaded
    assert not engine.was_asked_early


class Away(TransformersEngine):
    """Fails at the first load of new weights."""

    loads_ahead = True
    failures = 0

    async def load(self, policy: PolicyVersion) -> None:
        if policy.step == 1 and not self.failures:
            self.failures += 1
            raise ClusterError("away")
        await super().load(policy)


def test_weights_that_were_not_had_ahead_are_loaded_where_they_are_needed(
    make_services: MakeServices, toy_config: TrainConfig, tiny_model: Path
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 2, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    engine = Away(tiny_model, config.engine, ChatTokenizer(tiny_model).end_token_ids)
    services = replace(make_services(config), engine=engine)

    async def run() -> None:
        await engine.start()
        with use(services):
            await train(config)

    asyncio.run(run())
    assert engine.failures == 1
    assert services.store.runs.list_runs()[0].status is RunStatus.COMPLETED
