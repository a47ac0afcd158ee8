"""The second half of an iteration: an update of every agent, and their registration.

updates ─▶ update per agent ─┬▶ compute    here             ─▶ register
                             └▶ dispatch   on a GPU worker

With `rollout.async_level=1` the next iteration is played beside the updates. Both have ended before
anything else loads weights, so which policy plays an iteration never depends on who was faster.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from flows.audit import run_resource
from flows.dispatch import dispatch
from flows.rollout import planned, rollout, serve
from flows.update import compute, update_request
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import services
from mappa_core.core.records.runs import Run
from mappa_core.core.records.updates import Update
from mappa_core.evaluate.registration import register_policies
from mappa_core.rollout.protocols import Engine, SleepingEngine

T = TypeVar("T")


@task(
    name="update",
    task_run_name="update {agent}",
    cache_policy=NO_CACHE,
    retries=1,
    retry_delay_seconds=2,
    persist_result=False,
)
async def update(run_id: UUID, agent: str, iteration: int, config: TrainConfig) -> Update:
    """One agent's update, computed here or by a run of `learner.deployment`."""
    port = services()
    request = update_request(run_id, agent, iteration, config)
    known = await asyncio.to_thread(port.store.updates.get_update, run_id, agent, iteration)
    if config.learner.deployment is None:
        done = await compute(request, config, port.learning)
    else:
        done = await dispatch(request, config, store=port.store, progress=port.progress)
    if known is None and done.skipped is not None:
        emit_event(
            "mappa.update.skipped",
            resource={
                "prefect.resource.id": f"mappa.agent.{agent}",
                "prefect.resource.name": agent,
            },
            payload={"run": str(run_id), "iteration": iteration, "reason": done.skipped},
        )
    return done


@task(
    name="register",
    task_run_name="register iteration {iteration}",
    cache_policy=NO_CACHE,
    retries=3,
    retry_delay_seconds=2,
    persist_result=False,
)
async def register(run: Run, iteration: int) -> tuple[str, ...]:
    """Register the iteration's checkpoints as `candidate`, and let automations know of new ones."""
    port = services()
    registered = await asyncio.to_thread(
        register_policies, run, iteration, registry=port.registry, store=port.store
    )
    if registered:
        emit_event(
            "mappa.update.registered",
            resource=run_resource(run.name),
            payload={"step": iteration, "versions": list(registered)},
        )
    return registered


async def learn(run: Run, iteration: int, config: TrainConfig) -> list[Update]:
    """Update every agent from the iteration's scores, and register what came of it."""
    async with _asleep(services().engine, config):
        updates = await _updates_beside_play(run, iteration, config)
    await register(run, iteration)
    return updates


async def _updates_beside_play(run: Run, iteration: int, config: TrainConfig) -> list[Update]:
    """Every agent's update; one step off, the next iteration is played meanwhile."""
    if not config.rollout.async_level or iteration == config.rollout.iterations:
        return await _updates(run, iteration, config)
    step = config.policy_step(iteration + 1)
    # Before any update: reading a model sets torch's defaults for the whole process meanwhile.
    port = services()
    next_episodes = planned(port.problems, run.id, "train", iteration + 1, config)
    await serve(port, run.id, step, next_episodes)
    playing = rollout(run.id, "train", iteration + 1, step, config)
    learning = _updates(run, iteration, config)
    learnt, played = await asyncio.gather(learning, playing, return_exceptions=True)
    updates = _result(learnt)
    _result(played)
    return updates


async def _updates(run: Run, iteration: int, config: TrainConfig) -> list[Update]:
    """Every agent's update, in the team's order; some at once where that is configured."""
    port = services()
    slots = asyncio.Semaphore(config.learner.updates_at_once)

    async def one(agent: str) -> Update:
        async with slots:
            done = await update(run.id, agent, iteration, config)
        port.progress.on_update_ended(agent, iteration, done.metrics)
        return done

    every = (one(agent.name) for agent in port.team.agents)
    return [_result(each) for each in await asyncio.gather(*every, return_exceptions=True)]


def _result(outcome: T | BaseException) -> T:
    """What came of one of several that were all waited for, so that none goes on unseen."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@asynccontextmanager
async def _asleep(engine: Engine, config: TrainConfig) -> AsyncGenerator[None]:
    """Leave the engine's memory to the learner inside the block, where they share a GPU."""
    if not config.engine.colocate or not isinstance(engine, SleepingEngine):
        yield
        return
    await engine.sleep()
    try:
        yield
    finally:
        await engine.wake()
