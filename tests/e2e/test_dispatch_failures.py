"""What a person is told when an update that was sent elsewhere does not come back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Running

from flows.dispatch import check_deployment, dispatch
from flows.train import train
from flows.update import update, update_request
from mappa_core.app.checks import check_inputs
from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import LogProgress
from mappa_core.app.services import Services, use
from mappa_core.core.errors import ConfigError, LearnerError, OutsideError, StoreError
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.updates import Update
from mappa_core.core.settings import Settings
from mappa_core.store.store import Store
from tests.builders import make_policy, make_run
from tests.e2e.conftest import MakeServices
from tests.e2e.elsewhere import computed_here, deploy, sent, undeploy, worker

Send = Callable[[], Awaitable[Update]]


@pytest.fixture
def send(store: Store, elsewhere: TrainConfig) -> Send:
    """Dispatch the update of an unknown run; a quiet worker is looked after at once."""
    request = update_request(uuid4(), "speaker", 1, elsewhere)
    return lambda: dispatch(
        request, elsewhere, store=store, progress=LogProgress(), quiet_seconds=0
    )


async def run(services: Services, config: TrainConfig) -> None:
    await services.engine.start()
    with use(services):
        await train(config)


async def arrived(state: StateType) -> FlowRun:
    while not (found := await sent(state)):
        await asyncio.sleep(0.1)
    return found[0]


def test_a_deployment_nobody_made_is_refused_before_anything_is_written(
    store: Store, make_remote: MakeServices, elsewhere: TrainConfig
) -> None:
    learner = elsewhere.learner.model_copy(update={"deployment": "update/tpu"})
    config = elsewhere.model_copy(update={"learner": learner})
    with pytest.raises(ConfigError, match="has no update/tpu: name the server of the workers"):
        asyncio.run(run(make_remote(config), config))
    assert store.runs.list_runs() == ()


def test_a_gpu_is_asked_of_the_machine_that_learns(elsewhere: TrainConfig) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    learner = elsewhere.learner.model_copy(update={"device": "cuda"})
    config = elsewhere.model_copy(update={"learner": learner, "team": "mathchat"})
    check_inputs(config, Settings())
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        check_inputs(computed_here(config), Settings())


def test_a_deployment_that_was_taken_away_is_one_line(send: Send) -> None:
    async def body() -> None:
        await deploy()
        await undeploy()
        await send()

    with pytest.raises(LearnerError, match=r"has no update/gpu: .*`prefect deploy --all`"):
        asyncio.run(body())


def test_a_person_is_told_that_nobody_computes(
    send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        await deploy(pool="gpu")
        waiting = asyncio.create_task(send())
        flow_run = await arrived(StateType.SCHEDULED)
        await told(waiting, "no worker of the pool gpu is there, `prefect worker start --pool gpu`")
        async with get_client() as client:
            await client.update_work_pool("gpu", WorkPoolUpdate(is_paused=True))
            await told(waiting, "the work pool gpu is paused, `prefect work-pool resume gpu`")
            await client.update_work_pool("gpu", WorkPoolUpdate(is_paused=False))
            await client.set_flow_run_state(flow_run.id, Running(), force=True)
        await told(
            waiting, "the worker of the pool gpu has fallen silent; if its machine died, cancel"
        )
        async with get_client() as client:
            await client.delete_flow_run(flow_run.id)
        with pytest.raises(LearnerError, match=f"{flow_run.id} was deleted before it had ended"):
            await waiting
        await undeploy()

    async def told(waiting: asyncio.Task[Update], news: str) -> None:
        while not any(news in each for each in caplog.messages):
            if waiting.done():
                await waiting
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING, logger="mappa"):
        asyncio.run(asyncio.wait_for(body(), 200))
    assert len([each for each in caplog.messages if each.startswith("update speaker 1: ")]) == 3


def test_an_update_whose_worker_died_is_sent_again(
    store: Store, make_remote: MakeServices, elsewhere: TrainConfig
) -> None:
    async def body() -> list[FlowRun]:
        await deploy()
        async with worker(deaths=1) as taken:
            await run(make_remote(elsewhere), elsewhere)
        return taken

    first, second = asyncio.run(body())
    assert first.id != second.id
    assert first.parameters == second.parameters
    assert store.runs.list_runs()[0].status is RunStatus.COMPLETED


@pytest.mark.slow
def test_a_worker_that_was_taken_for_dead_and_the_next_one_compute_once(
    make_remote: MakeServices, elsewhere: TrainConfig
) -> None:
    async def body() -> list[Update]:
        await deploy()
        training = asyncio.create_task(run(make_remote(elsewhere), elsewhere))
        asked = (await arrived(StateType.SCHEDULED)).parameters
        both = await asyncio.gather(update(**asked), update(**asked))
        async with worker():
            await training
        return both

    first, second = asyncio.run(body())
    assert first.seconds == second.seconds


def test_a_worker_that_dies_again_is_one_line(send: Send) -> None:
    async def body() -> None:
        await deploy()
        async with worker(deaths=1):
            await send()

    with pytest.raises(LearnerError, match=r"speaker failed in update/gpu \(flow run .* of life"):
        asyncio.run(body())


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


def test_a_worker_with_another_store_says_so(send: Send) -> None:
    async def body() -> None:
        await deploy()
        async with worker():
            await send()

    with pytest.raises(
        LearnerError, match=r"failed in update/gpu .* this worker has no run .* MAPPA_DATABASE_URL"
    ):
        asyncio.run(body())


def test_an_end_without_an_update_is_one_line(send: Send) -> None:
    async def body() -> None:
        await deploy()
        waiting = asyncio.create_task(send())
        flow_run = await arrived(StateType.SCHEDULED)
        async with get_client() as client:
            await client.set_flow_run_state(flow_run.id, Completed(), force=True)
        await waiting

    with pytest.raises(StoreError, match="it is not in this store: give its worker the MAPPA_DATA"):
        asyncio.run(body())


@pytest.mark.slow
def test_a_checkpoint_on_the_workers_own_disk_is_one_line(
    store: Store, make_remote: MakeServices, elsewhere: TrainConfig, tmp_path: Path
) -> None:
    async def body() -> None:
        await deploy()
        async with worker(own_disk=tmp_path / "checkpoints"):
            await run(make_remote(elsewhere), elsewhere)

    with pytest.raises(LearnerError, match=r"cannot be seen from here: .* MAPPA_HOME/checkpoints"):
        asyncio.run(body())
    assert store.runs.list_runs()[0].status is RunStatus.FAILED


def test_a_worker_that_cannot_see_the_last_checkpoint_computes_nothing(
    store: Store, elsewhere: TrainConfig
) -> None:
    there = make_run()
    store.runs.add_run(there)
    for step in (0, 1):
        store.policies.add_policy_version(make_policy(there, "speaker", step))
    with pytest.raises(LearnerError, match="checkpoints/speaker/1 cannot be seen from here"):
        asyncio.run(update(there.id, "speaker", 2, elsewhere))


def test_a_deployment_of_another_version_is_one_line(send: Send) -> None:
    form = {"type": "object", "properties": {"run_id": {"type": "integer"}}}

    async def body() -> None:
        await deploy(form=form)
        await send()

    with pytest.raises(LearnerError, match="of another version of MAPPA; `prefect deploy --all`"):
        asyncio.run(body())


def test_a_server_that_does_not_answer_is_one_line(send: Send) -> None:
    async def body() -> None:
        for asking in (check_deployment("update/gpu"), send()):
            with pytest.raises(
                OutsideError, match=r"Prefect does not answer at http://127.*:9/api"
            ):
                await asking

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        asyncio.run(body())
