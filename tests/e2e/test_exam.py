"""A run begins after its coach's exam, and does not where the coach fails."""

import asyncio
from dataclasses import replace

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import AlphabetCoach


class Pleased(AlphabetCoach):
    """Gives everything the same."""

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        return CoachScore(value=9.0, rationale="nice")


async def trained(services: Services, config: TrainConfig) -> None:
    await services.engine.start()
    with use(services):
        await train(config)


def test_a_coach_that_fails_its_exam_begins_no_run(
    store: Store, make_services: MakeServices, toy_config: TrainConfig
) -> None:
    size = {"iterations": 1, "episodes_per_problem": 2}
    config = toy_config.model_copy(
        update={
            "rollout": toy_config.rollout.model_copy(update=size),
            "coach": toy_config.coach.model_copy(update={"exam": "auto"}),
        }
    )
    services = replace(make_services(config, Pleased()), audit=AuditStore(store.database))
    with pytest.raises(ConfigError, match="cannot tell good work from bad"):
        asyncio.run(trained(services, config))
    assert store.runs.list_runs() == ()
    agreed = config.model_copy(update={"coach": config.coach.model_copy(update={"exam": "advise"})})
    asyncio.run(trained(services, agreed))
    (run,) = store.runs.list_runs()
    assert TrainConfig.model_validate(run.config).coach.exam == "advise"
