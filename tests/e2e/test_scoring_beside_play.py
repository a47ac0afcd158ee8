"""An episode that has ended is scored while others of its iteration still play."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

from flows.rollout import rollout
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

    def __post_init__(self) -> None:
        super().__post_init__()
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
