"""A deployment `update/gpu` on the test's Prefect server, and a worker for it in this process."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.flow_engine import run_flow_async
from prefect.states import Crashed, Running

from flows.update import update
from mappa_core.app.config import TrainConfig


def computed_here(config: TrainConfig) -> TrainConfig:
    """The same run with its updates in the training run's own process."""
    learner = config.learner.model_copy(update={"deployment": None})
    return config.model_copy(update={"learner": learner})


async def deploy(pool: str | None = None, form: Mapping[str, object] | None = None) -> None:
    """Deploy the flow `update` as `update/gpu`: on a work pool, with a form that is enforced."""
    async with get_client() as client:
        if pool is not None:
            await client.create_work_pool(WorkPoolCreate(name=pool, type="process"), overwrite=True)
        await client.create_deployment(
            await client.create_flow(update),
            name="gpu",
            work_pool_name=pool,
            parameter_openapi_schema=None if form is None else dict(form),
            enforce_parameter_schema=form is not None,
        )


async def undeploy() -> None:
    """Take the deployment away."""
    async with get_client() as client:
        found = await client.read_deployment_by_name("update/gpu")
        await client.delete_deployment(found.id)


async def sent(*states: StateType) -> list[FlowRun]:
    """Runs of the deployment in one of some states."""
    wanted = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states)))
    async with get_client() as client:
        return await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=wanted))


@asynccontextmanager
async def worker(*, deaths: int = 0, own_disk: Path | None = None) -> AsyncGenerator[list[FlowRun]]:
    """Runs what is sent, as long as the block; yields what it took.

    Args:
        deaths: How many of them it dies of; its silence is noticed at once.
        own_disk: Where its checkpoints lie, which no other process can see.
    """
    taken: list[FlowRun] = []

    async def work() -> None:
        while True:
            for flow_run in await sent(StateType.SCHEDULED):
                taken.append(flow_run)
                if len(taken) <= deaths:
                    await die_of(flow_run)
                    continue
                parameters = flow_run.parameters
                await run_flow_async(update, flow_run, parameters, return_type="state")
                if own_disk is not None:
                    shutil.rmtree(own_disk)
            await asyncio.sleep(0.1)

    working = asyncio.create_task(work())
    try:
        yield taken
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def die_of(flow_run: FlowRun) -> None:
    """What infra/automations.yaml makes of a run whose machine has lost its power."""
    async with get_client() as client:
        await client.set_flow_run_state(flow_run.id, Running(), force=True)
        silence = Crashed(message="No sign of life for 100 seconds; the worker has died.")
        await client.set_flow_run_state(flow_run.id, silence, force=True)
