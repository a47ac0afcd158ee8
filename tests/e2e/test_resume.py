"""A run that broke goes on where it stopped, and ends where an undisturbed one ends."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.core.errors import CoachError, ConfigError
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import AlphabetCoach


@dataclass
class Dying:
    """A coach that works a while and then not at all."""

    calls_left: int
    coach: AlphabetCoach = field(default_factory=AlphabetCoach)

    @property
    def identity(self) -> CoachIdentity:
        return self.coach.identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        if self.calls_left == 0:
            raise CoachError("the coach has left")
        self.calls_left -= 1
        return await self.coach.score(case)


def run(services: Services, config: TrainConfig, resume: str | None = None) -> None:
    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config, resume)

    asyncio.run(body())


def weights(store: Store) -> list[str]:
    """Hashes of the newest run's checkpoints."""
    (newest, *_) = store.runs.list_runs()
    return [checkpoint.sha256 for _, checkpoint in store.policies.list_checkpoints(newest.id)]


def assert_only_the_last_and_the_best_are_kept(store: Store) -> None:
    (newest, *_) = store.runs.list_runs()
    kept = {
        policy.step
        for policy, checkpoint in store.policies.list_checkpoints(newest.id)
        if Path(checkpoint.directory).exists()
    }
    scores = {}
    for step in (1, 2):
        update = store.updates.get_update(newest.id, "speaker", step + 1)
        assert update is not None
        scores[step] = update.metrics["score_mean"]
    # What was best so far was kept each time, so the best of all is.
    assert kept == {max(scores, key=scores.__getitem__), 3}


@pytest.fixture
def config(toy_config: TrainConfig) -> TrainConfig:
    shorter = toy_config.rollout.model_copy(update={"iterations": 3, "episodes_per_problem": 4})
    frugal = toy_config.learner.model_copy(update={"keep_checkpoints": 1})
    return toy_config.model_copy(update={"rollout": shorter, "learner": frugal})


def test_a_broken_run_is_recorded_and_resumed_to_the_same_weights(
    store: Store, make_services: MakeServices, config: TrainConfig
) -> None:
    run(make_services(config), config)
    undisturbed = weights(store)
    assert len(undisturbed) == 3
    assert_only_the_last_and_the_best_are_kept(store)

    with pytest.raises(CoachError, match="has left"):
        run(make_services(config, Dying(calls_left=13)), config)
    (broken, *_) = store.runs.list_runs()
    assert (broken.status, broken.error) == (RunStatus.FAILED, "the coach has left")
    assert weights(store) == undisturbed[:1]

    run(make_services(config), config, str(broken.id))
    (resumed, *_) = store.runs.list_runs()
    assert (resumed.id, resumed.status) == (broken.id, RunStatus.COMPLETED)
    assert resumed.error is None
    assert weights(store) == undisturbed
    assert len(store.runs.list_runs()) == 2


def test_a_run_is_not_resumed_with_another_configuration(
    store: Store, make_services: MakeServices, config: TrainConfig
) -> None:
    run(make_services(config), config)
    (first, *_) = store.runs.list_runs()
    with pytest.raises(ConfigError, match="seed"):
        run(make_services(config), config.model_copy(update={"seed": 2}), first.name)
    assert store.runs.get_run(first.name).status is RunStatus.COMPLETED
