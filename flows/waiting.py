"""Waiting for a flow run that a worker elsewhere is to execute, and saying why it may not be.

It is polled: an event that gets lost would leave a training run waiting for ever.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, WorkPoolStatus
from prefect.exceptions import ObjectNotFound

from mappa_core.app.progress import ProgressListener
from mappa_core.core.errors import LearnerError, OutsideError

POLL_SECONDS = 1.0
QUIET_SECONDS = 15.0
"""How often to look whether a worker is there to execute the run."""


@asynccontextmanager
async def prefect_api() -> AsyncGenerator[PrefectClient]:
    """Open a client of the Prefect server; what its own retries do not mend is one line.

    Raises:
        OutsideError: Prefect does not answer, or refuses.
    """
    async with get_client() as client:
        try:
            yield client
        except httpx.HTTPStatusError as error:
            answer = error.response
            raise OutsideError(
                f"Prefect at {client.api_url} answered {answer.status_code}: {one_line(answer)}"
            ) from error
        except httpx.TransportError as error:
            raise OutsideError(
                f"Prefect does not answer at {client.api_url} ({type(error).__name__}): resume the "
                "run once it does; what was sent to workers goes on"
            ) from error


async def ended_run(
    client: PrefectClient,
    flow_run_id: UUID,
    progress: ProgressListener,
    quiet_seconds: float,
) -> FlowRun:
    """Wait for a flow run to reach its final state, however long that takes; returns it.

    `progress` is told, once for each reason, why no worker may be executing it.

    Raises:
        LearnerError: It was deleted.
    """
    looked, said = time.monotonic(), None
    while True:
        flow_run = await _read(client, flow_run_id)
        if flow_run.state is not None and flow_run.state.is_final():
            return flow_run
        if time.monotonic() - looked >= quiet_seconds:
            trouble = await _trouble(client, flow_run)
            if trouble not in (None, said):
                progress.on_waiting(f"{flow_run.name}: {trouble} (flow run {flow_run_id})")
            looked, said = time.monotonic(), trouble
        await asyncio.sleep(POLL_SECONDS)


async def _read(client: PrefectClient, flow_run_id: UUID) -> FlowRun:
    try:
        return await client.read_flow_run(flow_run_id)
    except ObjectNotFound as error:
        raise LearnerError(f"the flow run {flow_run_id} was deleted before it had ended") from error


async def _trouble(client: PrefectClient, flow_run: FlowRun) -> str | None:
    """Why no worker may be executing it; None where all is well."""
    waits = flow_run.state is None or flow_run.state.is_scheduled()
    pool = flow_run.work_pool_name
    if pool is not None:
        status = (await client.read_work_pool(pool)).status
        if status is WorkPoolStatus.PAUSED and waits:
            return f"the work pool {pool} is paused, `prefect work-pool resume {pool}`"
        if status is WorkPoolStatus.NOT_READY and waits:
            return f"no worker of the pool {pool} is there, `prefect worker start --pool {pool}`"
        if status is WorkPoolStatus.NOT_READY:
            return (
                f"the worker of the pool {pool} has fallen silent; if its machine died, cancel "
                "the run in Prefect, and it is sent again"
            )
    return "no worker has taken it yet" if waits else None


def one_line(answer: httpx.Response) -> str:
    """Shorten what a server said for a person."""
    return " ".join(answer.text.split())[:300]
