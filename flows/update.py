"""One agent's update, computed here or by a worker.

train ─▶ update_task ─▶ update_agent                            learner.deployment: null
train ─▶ update_task ─▶ dispatch ─▶ update ─▶ update_agent      learner.deployment: update/gpu
                                    (a worker of the pool gpu)
"""

import asyncio
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from flows.dispatch import dispatch, visible_update
from mappa_core.app.config import TrainConfig
from mappa_core.app.learning import open_learning
from mappa_core.app.services import services
from mappa_core.core.errors import LearnerError, NotFound
from mappa_core.core.records.updates import Update
from mappa_core.core.settings import Settings
from mappa_core.store.store import Store
from mappa_core.train.update import UpdateRequest, check_visible


@flow(name="update", flow_run_name="update {agent} {iteration}", persist_result=False)
async def update(run_id: UUID, agent: str, iteration: int, config: TrainConfig) -> Update:
    """Compute here an update that a training run waits for elsewhere.

    Opens the learner and the store only. The update and its checkpoint are what it leaves; one that
    is in the store already is returned as it is.

    Args:
        run_id: The training run in the store.
        agent: Whose weights learn.
        iteration: 1, 2, ...; its episodes are played and scored.
        config: The training run's configuration.

    Raises:
        MappaError: It could not be computed; nothing half-done is in the store.
    """
    request = update_request(run_id, agent, iteration, config)
    async with open_learning(config, Settings(), get_run_logger()) as learning:
        await asyncio.to_thread(_check_shared, request, learning.store)
        return await asyncio.to_thread(learning.compute, request, config.audit)


@task(
    name="update",
    task_run_name="update {agent}",
    cache_policy=NO_CACHE,
    retries=1,
    retry_delay_seconds=2,
    persist_result=False,
)
async def update_task(run_id: UUID, agent: str, iteration: int, config: TrainConfig) -> Update:
    """Have one agent's update computed, unless the store has it."""
    port, request = services(), update_request(run_id, agent, iteration, config)
    done = await asyncio.to_thread(visible_update, port.store, request)
    if done is None:
        if config.learner.deployment is None:
            # In a thread, so that the event loop goes on.
            done = await asyncio.to_thread(port.learning.compute, request, config.audit)
        else:
            done = await dispatch(request, config, store=port.store, progress=port.progress)
        if done.skipped is not None:
            emit_event(
                "mappa.update.skipped",
                resource={
                    "prefect.resource.id": f"mappa.agent.{agent}",
                    "prefect.resource.name": agent,
                },
                payload={"run": str(run_id), "iteration": iteration, "reason": done.skipped},
            )
    port.progress.on_update_ended(agent, iteration, done.metrics)
    return done


def update_request(run_id: UUID, agent: str, iteration: int, config: TrainConfig) -> UpdateRequest:
    """Ask for one agent's update as its run is configured."""
    return UpdateRequest(
        run_id=run_id,
        agent=agent,
        iteration=iteration,
        algorithm=config.algorithm,
        total_steps=config.rollout.iterations,
        seed=config.seed,
        keep_checkpoints=config.learner.keep_checkpoints,
        async_level=config.rollout.async_level,
    )


def _check_shared(request: UpdateRequest, store: Store) -> None:
    """Refuse to compute where the store, or the checkpoints, are not the training run's."""
    try:
        store.runs.get_run(str(request.run_id))
    except NotFound as error:
        raise LearnerError(
            f"the store of this worker has no run {request.run_id}: start the worker with the "
            "MAPPA_DATABASE_URL of the training run"
        ) from error
    if store.updates.get_update(request.run_id, request.agent, request.iteration) is None:
        check_visible(store, request.run_id, request.agent, request.iteration - 1)
