"""One agent's update, by whoever is to compute it.

train ─▶ compute                                   learner.deployment: null
train ─▶ dispatch ─▶ update/gpu ─▶ compute         learner.deployment: update/gpu
                     (a worker of the pool gpu)
"""

import asyncio
from uuid import UUID

from prefect import flow, get_run_logger

from flows.audit import corrector
from mappa_core.app.config import TrainConfig
from mappa_core.app.learning import Learning, open_learning
from mappa_core.core import ids
from mappa_core.core.errors import LearnerError, NotFound
from mappa_core.core.records.updates import Update
from mappa_core.core.settings import Settings
from mappa_core.store.store import Store
from mappa_core.train.retention import retire_checkpoints
from mappa_core.train.update import UpdateRequest, check_visible, update_agent


@flow(name="update", flow_run_name="update {agent} {iteration}", persist_result=False)
async def update(run_id: UUID, agent: str, iteration: int, config: TrainConfig) -> Update:
    """Compute here an update that a training run waits for elsewhere.

    Opens the learner and the store only. The update and its checkpoint are what it leaves; one that
    is in the store already is returned as it is.

    Args:
        run_id: The training run in the store.
        agent: Who learns.
        iteration: 1, 2, ...; its episodes are played and scored.
        config: The training run's configuration.

    Raises:
        MappaError: It could not be computed; nothing half-done is in the store.
    """
    request = update_request(run_id, agent, iteration, config)
    async with open_learning(config, Settings(), get_run_logger()) as port:
        await asyncio.to_thread(_check_shared, request, port.store)
        return await compute(request, config, port)


def update_request(run_id: UUID, agent: str, iteration: int, config: TrainConfig) -> UpdateRequest:
    """Ask for one agent's update as a run is configured."""
    return UpdateRequest(
        run_id=run_id,
        agent=agent,
        iteration=iteration,
        algorithm=config.algorithm,
        total_steps=config.rollout.iterations,
        seed=config.seed,
    )


def _check_shared(request: UpdateRequest, store: Store) -> None:
    """Look whether this machine has what the training run has.

    Raises:
        LearnerError: It has another store, or other checkpoints.
    """
    try:
        store.runs.get_run(str(request.run_id))
    except NotFound as error:
        raise LearnerError(
            f"the store of this worker has no run {request.run_id}: start the worker with the "
            "MAPPA_DATABASE_URL of the training run"
        ) from error
    if store.updates.get_update(request.run_id, request.agent, request.iteration) is None:
        check_visible(store, request.run_id, request.agent, request.iteration - 1)


async def compute(request: UpdateRequest, config: TrainConfig, port: Learning) -> Update:
    """The update, in a thread so that the event loop goes on; older checkpoints make room.

    All but this iteration's are registered by now, so what is removed here has its copy.
    """
    return await asyncio.to_thread(_compute, request, config, port)


def _compute(request: UpdateRequest, config: TrainConfig, port: Learning) -> Update:
    identity = ids.update_id(request.run_id, request.agent, request.iteration)
    # A worker that was taken for dead may be at it: two would write one checkpoint.
    with port.store.lock(identity):
        done = update_agent(
            request,
            learner=port.learner,
            store=port.store,
            correct=corrector(config.audit, port),
        )
    keep, async_level = config.learner.keep_checkpoints, config.rollout.async_level
    retire_checkpoints(port.store, request.run_id, request.agent, keep, async_level)
    return done
