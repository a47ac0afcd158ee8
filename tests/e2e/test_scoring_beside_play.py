"""An episode that has ended is scored while others of its iteration still play."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from flows.rollout import rollout
from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.runs import prepare_run, stored_run
from mappa_core.app.services import use
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.rollout.protocols import Engine
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import AlphabetCoach


class Listening(AlphabetCoach):
    """A coach that tells when it is first asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.asked.set()
        return await super().score(case)


@dataclass
class Holding:
    """An engine that holds its first action back until a coach was asked about another's."""

    engine: Engine
    asked: asyncio.Event
    asked_meanwhile: bool | None = None

    async def start(self) -> None:
        await self.engine.start()

    async def load(self, policy: PolicyVersion) -> None:
        await self.engine.load(policy)

    async def generate(self, request: GenerationRequest) -> Completion:
        if self.asked_meanwhile is None:
            self.asked_meanwhile = False
            with suppress(TimeoutError):
                await asyncio.wait_for(self.asked.wait(), 20)
            self.asked_meanwhile = self.asked.is_set()
        return await self.engine.generate(request)

    async def close(self) -> None:
        await self.engine.close()


def test_a_score_does_not_wait_for_the_other_episodes(
    make_services: MakeServices, toy_config: TrainConfig
) -> None:
    short = {"iterations": 1, "episodes_per_problem": 2}
    config = toy_config.model_copy(update={"rollout": toy_config.rollout.model_copy(update=short)})
    coach = Listening()
    made = make_services(config, coach)
    engine = Holding(made.engine, coach.asked)
    services = replace(made, engine=engine)

    async def body() -> int:
        await services.engine.start()
        with use(services):
            run = prepare_run(services, stored_run(services, config, None), config)
            return await rollout(run.id, "train", 1, 0, config)

    assert asyncio.run(body()) == 4
    assert engine.asked_meanwhile


class Solving(AlphabetCoach):
    """A coach that solves tasks, and keeps in which order it was asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, frozenset[str]]] = []

    async def solve(self, statements: Iterable[str]) -> None:
        self.heard.append(("solve", frozenset(statements)))

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.heard.append(("score", frozenset([case.statement])))
        return await super().score(case)


@pytest.mark.slow
def test_tasks_are_solved_an_iteration_ahead(
    make_services: MakeServices, toy_config: TrainConfig
) -> None:
    short = {"iterations": 3, "episodes_per_problem": 2}
    config = toy_config.model_copy(update={"rollout": toy_config.rollout.model_copy(update=short)})
    coach = Solving()
    services = make_services(config, coach)

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    asyncio.run(body())
    solved = [at for at, (what, _) in enumerate(coach.heard) if what == "solve"]
    assert len(solved) == 3
    scored = [at for at in range(len(coach.heard)) if at not in solved]
    per_iteration = len(scored) // 3
    for number, at in enumerate(solved):
        first, *more = scored[number * per_iteration : (number + 1) * per_iteration]
        assert at < first
        assert coach.heard[at][1] == frozenset().union(*(coach.heard[k][1] for k in (first, *more)))
        if number:
            assert at < scored[(number - 1) * per_iteration], (
                "before the iteration before is scored"
            )
    heard = len(coach.heard)
    run = services.store.runs.list_runs()[0]

    async def again() -> None:
        with use(services):
            await train(config, resume=str(run.id))

    asyncio.run(again())
    assert len(coach.heard) == heard, "what was learnt from is not solved again"
