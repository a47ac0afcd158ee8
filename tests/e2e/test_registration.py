"""Which checkpoints of a run become model versions."""

import asyncio

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.store.store import Store
from mappa_core.train.retention import best_steps
from tests.e2e.conftest import MakeServices
from tests.fakes.tracking import MemoryRegistry


@pytest.mark.parametrize("tracking", [{"versions": "every"}, {}], ids=["every", "by default"])
def test_the_checkpoints_that_are_asked_for_are_registered(
    store: Store, make_services: MakeServices, toy_config: TrainConfig, tracking: dict[str, str]
) -> None:
    config = TrainConfig.model_validate(
        toy_config.model_dump()
        | {
            "rollout": toy_config.rollout.model_dump() | {"iterations": 4},
            "tracking": tracking,
        }
    )
    services = make_services(config)
    registry = services.registry
    assert isinstance(registry, MemoryRegistry)

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    asyncio.run(body())
    (run,) = store.runs.list_runs()
    best = best_steps(store, run.id, 0)["speaker"]
    assert best < 4
    (name,) = registry.models()
    steps = [each.step for each in registry.versions(name)]
    assert steps == ([1, 2, 3, 4] if tracking else [best, 4])
    (candidate,) = [each for each in registry.versions(name) if "candidate" in each.aliases]
    assert candidate.step == 4
