"""One step off: the next iteration is played while agents learn, and everything else stays."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.core.errors import CoachError
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.test_learning import mean_share
from tests.e2e.test_resume import Dying, weights

STALENESS = """
SELECT DISTINCT iteration, policy_step, staleness FROM audit.action_scores
WHERE phase = 'train' ORDER BY iteration
"""


def run(services: Services, config: TrainConfig, resume: str | None = None) -> None:
    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config, resume)

    asyncio.run(body())


def one_step_off(config: TrainConfig, **rollout: int) -> TrainConfig:
    changed = config.rollout.model_copy(update={"async_level": 1, **rollout})
    frugal = config.learner.model_copy(update={"keep_checkpoints": 1})
    return config.model_copy(update={"rollout": changed, "learner": frugal})


def stale(url: str) -> list[tuple[int, int, int]]:
    """Iteration, step of the policy that played it, and by how many updates it was behind."""
    with psycopg.connect(for_psql(url)) as connection:
        return connection.execute(STALENESS).fetchall()


def broken_late_and_resumed(store: Store, make_services: MakeServices, config: TrainConfig) -> None:
    """A run that broke in its last iteration and went on has the weights of one that did not."""
    run(make_services(config), config)
    undisturbed = weights(store)
    assert len(undisturbed) == config.rollout.iterations
    with pytest.raises(CoachError, match="has left"):
        run(make_services(config, Dying(calls_left=4 * config.rollout.iterations - 1)), config)
    (broken, *_) = store.runs.list_runs()
    assert weights(store) == undisturbed[:-1]
    # Weights that played an earlier iteration are retired by now.
    on_disk = [
        Path(saved.directory).is_dir() for _, saved in store.policies.list_checkpoints(broken.id)
    ]
    assert not all(on_disk)
    run(make_services(config), config, str(broken.id))
    assert weights(store) == undisturbed


@pytest.mark.slow
def test_one_step_off_is_exact_and_resumes_exactly(
    store: Store, make_services: MakeServices, toy_config: TrainConfig, database_url: str
) -> None:
    config = one_step_off(toy_config, iterations=5, episodes_per_problem=2)
    broken_late_and_resumed(store, make_services, config)
    assert stale(database_url) == [(1, 0, 0), (2, 0, 1), (3, 1, 1), (4, 2, 1), (5, 3, 1)]
    for made in store.runs.list_runs():
        updates = [store.updates.get_update(made.id, "speaker", k) for k in (1, 2, 3, 4, 5)]
        assert [each and each.metrics["staleness"] for each in updates] == [0, 1, 1, 1, 1]


@pytest.mark.slow
def test_an_on_policy_run_resumes_without_weights_that_it_has_retired(
    store: Store, make_services: MakeServices, toy_config: TrainConfig, database_url: str
) -> None:
    config = one_step_off(toy_config, iterations=4, episodes_per_problem=2, async_level=0)
    broken_late_and_resumed(store, make_services, config)
    assert stale(database_url) == [(k, k - 1, 0) for k in (1, 2, 3, 4)]


@pytest.mark.slow
def test_it_learns_from_actions_that_are_one_update_old(
    store: Store, make_services: MakeServices, toy_config: TrainConfig
) -> None:
    often = toy_config.evaluation.model_copy(update={"samples": 8})
    config = one_step_off(toy_config.model_copy(update={"evaluation": often}))
    run(make_services(config), config)
    assert mean_share(store, config.rollout.iterations) > mean_share(store, 0) + 0.2
