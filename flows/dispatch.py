"""Updates computed elsewhere: sent as runs of a deployment, found again in the store.

dispatch ─▶ update/gpu ─▶ a worker computes it ─▶ update and checkpoint ─▶ read here

Out go ids and the configuration; back comes only how the run ended. A training run that dies leaves
its update to the worker: resumed, it finds the update done, or waits for the run that is under way.
"""

import asyncio
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound

from mappa_core.domain import ids
from mappa_core.domain.errors import ConfigError, LearnerError, StoreError
from mappa_core.domain.records import Update
from mappa_core.ports import Store, Watcher
from mappa_core.steps import UpdateRequest, policy_at

POLL_SECONDS = 1.0
_ON_ITS_WAY = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]


async def check_deployment(deployment: str | None) -> None:
    """Refuse a run whose updates nobody could compute.

    Raises:
        ConfigError: The Prefect server has no such deployment.
    """
    if deployment is None:
        return
    async with get_client() as client:
        try:
            await client.read_deployment_by_name(deployment)
        except ObjectNotFound as error:
            raise ConfigError(
                f"learner.deployment: Prefect at {client.api_url} has no {deployment}: "
                "`prefect deploy --all` there (docs/deployments.md), or set it to null"
            ) from error


async def dispatch(
    request: UpdateRequest, deployment: str, *, store: Store, watcher: Watcher
) -> Update:
    """The update, computed by a run of `deployment` unless the store has it.

    Raises:
        LearnerError: The run failed, or its checkpoint is not to be seen from here.
        StoreError: The run ended well and the update is not in this store.
    """
    done = await asyncio.to_thread(_found, store, request)
    if done is not None:
        return done
    async with get_client() as client:
        sent = await _on_its_way(client, request) or await _send(request, deployment)
        ended = await _ended(client, sent.id, deployment, watcher)
    if ended.state is None or not ended.state.is_completed():
        said = ended.state and (ended.state.message or ended.state.name)
        raise LearnerError(
            f"the update of {request.agent} failed in {deployment} (flow run {ended.id}): {said}"
        )
    done = await asyncio.to_thread(_found, store, request)
    if done is None:
        raise StoreError(
            f"{deployment} has computed the update of {request.agent} and it is not in this store: "
            "give its worker the MAPPA_DATABASE_URL of this run"
        )
    return done


def _found(store: Store, request: UpdateRequest) -> Update | None:
    """The update in the store, once the weights it made can be read.

    Raises:
        LearnerError: They cannot.
    """
    done = store.update(request.run_id, request.agent, request.iteration)
    if done is None:
        return None
    made = policy_at(store, request.run_id, request.agent, request.iteration)
    if made.adapter_uri is not None and not Path(made.adapter_uri).is_dir():
        raise LearnerError(
            f"the checkpoint {made.adapter_uri} cannot be seen from here: share "
            "MAPPA_HOME/checkpoints with the worker of the updates, at the same path"
        )
    return done


async def _on_its_way(client: PrefectClient, request: UpdateRequest) -> FlowRun | None:
    """The run that an earlier attempt sent, if it has not ended."""
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[_tag(request)]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_ON_ITS_WAY)),
    )
    return next(iter(await client.read_flow_runs(flow_run_filter=wanted, limit=1)), None)


async def _send(request: UpdateRequest, deployment: str) -> FlowRun:
    return await arun_deployment(
        deployment,
        parameters={
            "run_id": str(request.run_id),
            "agent": request.agent,
            "iteration": request.iteration,
            "config": request.config.model_dump(mode="json"),
        },
        tags=[_tag(request)],
        timeout=0,
    )


def _tag(request: UpdateRequest) -> str:
    return f"mappa.update.{ids.update_id(request.run_id, request.agent, request.iteration)}"


async def _ended(
    client: PrefectClient, flow_run_id: UUID, deployment: str, watcher: Watcher
) -> FlowRun:
    told = False
    while True:
        flow_run = await client.read_flow_run(flow_run_id)
        if flow_run.state is not None and flow_run.state.is_final():
            return flow_run
        if flow_run.state_name == "Late" and not told:
            watcher.waiting(f"no worker has taken {deployment} yet (flow run {flow_run_id})")
            told = True
        await asyncio.sleep(POLL_SECONDS)
