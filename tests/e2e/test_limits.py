"""Global limits of the Prefect server: kept where they are, free where they are not."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

from flows.limits import Limit, global_limits, limited
from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.app.services import Services, use
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import CoachCase, CoachScore, ScoredAction, Unscored
from mappa_core.core.records.updates import UpdateReport
from mappa_core.train.protocols import Learner
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import SPEAKER, AlphabetCoach, Monologue


@dataclass
class Crowd:
    """Remembers how many were in it at once."""

    most: int = 0
    _now: int = 0

    async def visit(self) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.05)
        self._now -= 1


@dataclass
class Busy(AlphabetCoach):
    """A coach that takes a moment."""

    crowd: Crowd = field(default_factory=Crowd)

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        await self.crowd.visit()
        return await super().score(case)


@asynccontextmanager
async def limit_of(name: str, limit: int) -> AsyncGenerator[None]:
    async with get_client() as client:
        made = GlobalConcurrencyLimitCreate(name=name, limit=limit)
        await client.create_global_concurrency_limit(made)
        try:
            yield
        finally:
            await client.delete_global_concurrency_limit_by_name(name)


async def run(services: Services, config: TrainConfig) -> None:
    await services.engine.start()
    with use(services):
        await train(config)


def test_a_place_is_waited_for_where_its_limit_was_there_at_the_start() -> None:
    async def take(limit: Limit, crowd: Crowd) -> None:
        async with limited(limit):
            await crowd.visit()

    async def body() -> tuple[int, int]:
        held, free = Crowd(), Crowd()
        async with limit_of("mappa-coach", 1), global_limits(), limit_of("mappa-engine", 1):
            await asyncio.gather(*(take("mappa-coach", held) for _ in range(3)))
            await asyncio.gather(*(take("mappa-engine", free) for _ in range(3)))
        return held.most, free.most

    assert asyncio.run(body()) == (1, 3)


@pytest.mark.slow
def test_a_coach_is_asked_by_as_many_as_the_server_allows(
    make_services: MakeServices, toy_config: TrainConfig
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 1, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    free, held = Busy(), Busy()

    async def body() -> None:
        await run(make_services(config, free), config)
        async with limit_of("mappa-coach", 1):
            await run(make_services(config, held), config)

    asyncio.run(body())
    assert free.crowd.most > 1
    assert held.crowd.most == 1


@dataclass
class Watched:
    """A learner that remembers how many updates were under way at once."""

    learner: Learner
    most: int = 0
    _now: int = 0

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        return self.learner.logprobs(policy, actions)

    def update(self, *arguments: Any, **settings: Any) -> UpdateReport:
        self._now += 1
        self.most = max(self.most, self._now)
        time.sleep(0.5)
        self._now -= 1
        return self.learner.update(*arguments, **settings)


@pytest.mark.parametrize("at_once", [1, 2])
def test_as_many_agents_learn_at_once_as_configured(
    make_services: MakeServices, toy_config: TrainConfig, at_once: int
) -> None:
    config = with_overrides(
        toy_config,
        [
            "rollout.iterations=1",
            "rollout.episodes_per_problem=2",
            f"learner.updates_at_once={at_once}",
        ],
    )
    made = make_services(config)
    assert made.learner is not None
    learner = Watched(made.learner)
    team = Monologue(agents=(SPEAKER, replace(SPEAKER, name="listener")))
    asyncio.run(run(replace(made, team=team, learner=learner), config))
    assert learner.most == at_once
