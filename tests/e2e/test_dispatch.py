"""Updates computed elsewhere: by real runs of a real deployment, taken by a worker in this process.

A process worker on a work pool does the same in tests/integration/platform/test_deployed.py.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.flow_engine import run_flow_async

from flows.dispatch import dispatch
from flows.train import train
from flows.update import update
from mappa_core import bootstrap
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.adapters.watchers import LogWatcher
from mappa_core.bootstrap import Services
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import ConfigError, LearnerError
from mappa_core.domain.records import RunStatus
from mappa_core.steps import UpdateRequest
from tests.e2e.conftest import MakeServices

MEASURED = ("seconds", "_per_second", "memory_bytes")
"""Figures of the machine, not of the update: their names end like this."""


@pytest.fixture
def elsewhere(
    toy_config: TrainConfig,
    tiny_model: Path,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> TrainConfig:
    """An iteration whose update is computed by whoever has this store and these checkpoints."""
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path))
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    changes = {
        "model": str(tiny_model),
        "rollout": {**toy_config.rollout.model_dump(), "iterations": 1, "episodes_per_problem": 4},
        "learner": {**toy_config.learner.model_dump(), "deployment": "update/gpu"},
    }
    return TrainConfig.model_validate({**toy_config.model_dump(), **changes})


@pytest.fixture
def make_remote(make_services: MakeServices) -> Callable[[TrainConfig], Services]:
    """Services without a learner."""
    return lambda config: replace(make_services(config), learner=None)


async def run(services: Services, config: TrainConfig, resume: str | None = None) -> None:
    await services.engine.start()
    with bootstrap.use(services):
        await train(config, resume)


async def deploy() -> None:
    async with get_client() as client:
        await client.create_deployment(await client.create_flow(update), name="gpu")


async def sent(*states: StateType) -> list[FlowRun]:
    """Runs of the deployment in one of some states."""
    wanted = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states)))
    async with get_client() as client:
        return await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=wanted))


@asynccontextmanager
async def worker() -> AsyncGenerator[list[FlowRun]]:
    """Runs what is sent, as long as the block; yields what it ran."""
    taken: list[FlowRun] = []

    async def work() -> None:
        while True:
            for flow_run in await sent(StateType.SCHEDULED):
                taken.append(flow_run)
                parameters = flow_run.parameters
                await run_flow_async(update, flow_run, parameters, return_type="state")
            await asyncio.sleep(0.1)

    working = asyncio.create_task(work())
    try:
        yield taken
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


def learnt(store: PostgresStore) -> tuple[object, ...]:
    """What the newest run's update came to: weights, figures, and the advantage of each action."""
    (newest, *_) = store.runs()
    ((_, checkpoint),) = store.checkpoints(newest.id)
    done = store.update(newest.id, "speaker", 1)
    assert done is not None
    figures = {name: of for name, of in done.metrics.items() if not name.endswith(MEASURED)}
    return checkpoint.sha256, figures, sorted(each.advantage or 0.0 for each in done.entries)


def test_an_update_elsewhere_is_the_update_here(
    store: PostgresStore,
    make_services: MakeServices,
    make_remote: MakeServices,
    elsewhere: TrainConfig,
    tmp_path: Path,
) -> None:
    async def body() -> list[FlowRun]:
        await deploy()
        async with worker() as taken:
            await run(make_remote(elsewhere), elsewhere)
        return taken

    (taken,) = asyncio.run(body())
    there = learnt(store)
    (only,) = store.runs()
    crossed = {"run_id": str(only.id), "agent": "speaker", "iteration": 1}
    assert taken.parameters == {**crossed, "config": elsewhere.model_dump(mode="json")}

    learner = elsewhere.learner.model_copy(update={"deployment": None})
    here = elsewhere.model_copy(update={"learner": learner})
    asyncio.run(run(make_services(here), here))
    assert len(store.runs()) == 2
    assert learnt(store) == there

    shutil.rmtree(tmp_path / "checkpoints")
    done = UpdateRequest(run_id=only.id, agent="speaker", iteration=1, config=elsewhere)
    with pytest.raises(LearnerError, match="cannot be seen from here: share MAPPA_HOME/checkpoint"):
        asyncio.run(dispatch(done, "update/gpu", store=store, watcher=LogWatcher()))


def test_a_stopped_run_finds_the_update_it_had_sent(
    store: PostgresStore, make_remote: MakeServices, elsewhere: TrainConfig
) -> None:
    async def body() -> list[FlowRun]:
        await deploy()
        stopped = asyncio.create_task(run(make_remote(elsewhere), elsewhere))
        while not await sent(StateType.SCHEDULED):
            await asyncio.sleep(0.1)
        stopped.cancel()
        with suppress(asyncio.CancelledError):
            await stopped
        (broken,) = store.runs()
        assert broken.status is RunStatus.INTERRUPTED
        async with worker() as taken:
            await run(make_remote(elsewhere), elsewhere, broken.name)
        return taken

    assert len(asyncio.run(body())) == 1
    assert store.runs()[0].status is RunStatus.COMPLETED


def test_what_fails_elsewhere_is_one_line_here(
    make_remote: MakeServices, elsewhere: TrainConfig, tmp_path: Path
) -> None:
    config = elsewhere.model_copy(update={"model": str(tmp_path / "nowhere")})

    async def body() -> None:
        await deploy()
        async with worker():
            await run(make_remote(config), config)

    with pytest.raises(
        LearnerError, match=r"speaker failed in update/gpu .* ModelNotFound: .*nowhere"
    ):
        asyncio.run(body())


def test_a_deployment_nobody_made_is_refused_before_anything_is_written(
    store: PostgresStore, make_remote: MakeServices, elsewhere: TrainConfig
) -> None:
    learner = elsewhere.learner.model_copy(update={"deployment": "update/tpu"})
    config = elsewhere.model_copy(update={"learner": learner})
    with pytest.raises(ConfigError, match="has no update/tpu: `prefect deploy --all`"):
        asyncio.run(run(make_remote(config), config))
    assert store.runs() == ()
