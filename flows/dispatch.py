"""Updates computed elsewhere: sent as runs of a deployment, found again in the store.

dispatch ─▶ update/gpu ─▶ a worker computes it ─▶ update and checkpoint ─▶ read here

Out go ids and the configuration; back comes only how the run ended. A training run that dies leaves
its update to the worker: resumed, it finds the update done, or waits for the run that is under way.
"""

import asyncio
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound

from flows.waiting import QUIET_SECONDS, ended_run, one_line, prefect_api
from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import ProgressListener
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError, LearnerError, MappaError, StoreError
from mappa_core.core.records.updates import Update
from mappa_core.store.store import Store
from mappa_core.train.update import UpdateRequest, check_visible

_ON_ITS_WAY = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]
_REFUSED = (httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY)
"""What Prefect answers to parameters that a deployment's form does not take."""


async def check_deployment(deployment: str | None) -> None:
    """Refuse a run whose updates no worker could compute.

    Raises:
        ConfigError: The Prefect server has no such deployment.
        OutsideError: It does not answer.
    """
    if deployment is not None:
        async with prefect_api() as client:
            await _deployment_id(client, deployment, ConfigError)


async def dispatch(
    request: UpdateRequest,
    config: TrainConfig,
    *,
    store: Store,
    progress: ProgressListener,
    quiet_seconds: float = QUIET_SECONDS,
) -> Update:
    """Have an update that the store lacks computed by a run of `learner.deployment`.

    `progress` is told, every `quiet_seconds` at most, why no worker may be computing it.

    Raises:
        LearnerError: The deployment is gone, its run failed, or the checkpoint is not to be seen
            from here.
        StoreError: The run ended well and the update is not in this store.
        OutsideError: Prefect does not answer.
    """
    deployment = config.learner.deployment or ""
    async with prefect_api() as client:
        where = await _deployment_id(client, deployment, LearnerError)
        sent = await _on_its_way(client, where, request)
        sent = sent or await _send(client, where, request, config)
        ended = await ended_run(client, sent.id, progress, quiet_seconds)
    done = await asyncio.to_thread(visible_update, store, request)
    if done is None:
        raise _nothing_came(request, deployment, ended)
    return done


def visible_update(store: Store, request: UpdateRequest) -> Update | None:
    """Find an update in the store, None where it is not, and check that its weights can be read.

    Raises:
        LearnerError: They cannot.
    """
    run_id, agent, iteration = request.run_id, request.agent, request.iteration
    done = store.updates.get_update(run_id, agent, iteration)
    # An older one's weights may have been retired since.
    if done is not None and store.policies.get_policy_version(run_id, agent, iteration + 1) is None:
        check_visible(store, run_id, agent, iteration)
    return done


def _nothing_came(request: UpdateRequest, deployment: str, ended: FlowRun) -> MappaError:
    if ended.state is not None and ended.state.is_completed():
        return StoreError(
            f"{deployment} has computed the update of {request.agent} and it is not in this store: "
            "give its worker the MAPPA_DATABASE_URL of this run"
        )
    said = ended.state and (ended.state.message or ended.state.name)
    return LearnerError(
        f"the update of {request.agent} failed in {deployment} (flow run {ended.id}): {said}"
    )


async def _deployment_id(client: PrefectClient, name: str, absent: type[MappaError]) -> UUID:
    try:
        return (await client.read_deployment_by_name(name)).id
    except ObjectNotFound:
        raise absent(
            f"learner.deployment: Prefect at {client.api_url} has no {name}: name the server of "
            "the workers in PREFECT_API_URL and `prefect deploy --all` there "
            "(docs/deployments.md), or set it to null"
        ) from None


async def _on_its_way(
    client: PrefectClient, deployment_id: UUID, request: UpdateRequest
) -> FlowRun | None:
    """The run that an earlier attempt sent, if it has not ended."""
    wanted = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]),
        tags=FlowRunFilterTags(all_=[_tag(request)]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_ON_ITS_WAY)),
    )
    return next(iter(await client.read_flow_runs(flow_run_filter=wanted, limit=1)), None)


async def _send(
    client: PrefectClient, deployment_id: UUID, request: UpdateRequest, config: TrainConfig
) -> FlowRun:
    try:
        return await arun_deployment(
            deployment_id,
            client=client,
            flow_run_name=f"update {request.agent} {request.iteration}",
            parameters={
                "run_id": str(request.run_id),
                "agent": request.agent,
                "iteration": request.iteration,
                "config": config.model_dump(mode="json"),
            },
            tags=[_tag(request)],
            timeout=0,
        )
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in _REFUSED:
            raise
        raise LearnerError(
            f"learner.deployment does not take this run's configuration "
            f"({one_line(error.response)}): it is of another version of MAPPA; "
            "`prefect deploy --all` with this one, and restart its workers"
        ) from error


def _tag(request: UpdateRequest) -> str:
    return f"mappa.update.{ids.update_id(request.run_id, request.agent, request.iteration)}"
