"""The training flow: rollout and scores, one update per agent, registration, measurement.

evaluate ─▶ [ rollout + coach_score ─▶ update per agent ─▶ register ─▶ table ] x iterations
         ─▶ evaluate ─▶ before and after

With `rollout.async_level=1` the next iteration is played beside the updates. Both have ended before
anything else loads weights, so which policy plays an iteration never depends on who was faster.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from flows import auditing
from flows.evaluate import compare_steps, evaluate_held_out
from flows.opening import open_run, recorded
from flows.recorder import check_recorder_load
from flows.rollout import planned, rollout, serve
from mappa_core import steps
from mappa_core.bootstrap import open_services, services
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import CoachError
from mappa_core.domain.records import IterationFigures, Run, Update
from mappa_core.evaluation.comparison import Comparison
from mappa_core.ports import BudgetedCoach, Engine, SleepingEngine
from mappa_core.settings import Settings

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
    """One agent's update, in a thread so that the event loop goes on."""
    port = services()
    done = await asyncio.to_thread(
        steps.update_agent,
        steps.UpdateRequest(run_id=run_id, agent=agent, iteration=iteration, config=config),
        learner=port.learner,
        store=port.store,
        correct=auditing.corrector(config.audit, port),
    )
    if done.skipped is not None:
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
    """Register the iteration's checkpoints as `candidate`, and let automations know."""
    port = services()
    registered = await asyncio.to_thread(
        steps.register_policies, run, iteration, registry=port.registry, store=port.store
    )
    emit_event(
        "mappa.update.registered",
        resource={
            "prefect.resource.id": f"mappa.run.{run.name}",
            "prefect.resource.name": run.name,
        },
        payload={"step": iteration, "versions": list(registered)},
    )
    return registered


@flow(name="train", flow_run_name="train {config.name}", persist_result=False)
async def train(config: TrainConfig, resume: str | None = None) -> Comparison:
    """Train a team, or go on with run `resume`; returns base against trained, held out.

    A retried Prefect run goes on with its own run. Whatever is in the store is not done again.

    Raises:
        ConfigError: The configuration cannot be run; nothing was written.
        MappaError: Something outside failed; the run can be resumed.
    """
    async with open_services(config, Settings()) as port:
        check_recorder_load(config, port.team)
        run = await asyncio.to_thread(open_run, config, resume)
        port.watcher.run(run)
        if isinstance(port.coach, BudgetedCoach):
            port.coach.resume_budget(await asyncio.to_thread(port.store.coach_spending, run.id))
        async with recorded(run):
            return await _train(run, config)


async def _train(run: Run, config: TrainConfig) -> Comparison:
    await evaluate_held_out(run.id, 0, config)
    watch = auditing.Watch(run, config)
    for iteration in range(config.start.step + 1, config.rollout.iterations + 1):
        await _iterate(run, iteration, config, watch)
        every = config.evaluation.every
        if every and iteration % every == 0 and iteration < config.rollout.iterations:
            await evaluate_held_out(run.id, iteration, config)
    await evaluate_held_out(run.id, config.rollout.iterations, config)
    comparison = await compare_steps(run.id, 0, config.rollout.iterations, config)
    await _log_comparison(run, config.rollout.iterations, comparison)
    return comparison


async def _iterate(run: Run, iteration: int, config: TrainConfig, watch: auditing.Watch) -> None:
    """One round: play, score, learn, register, show."""
    port = services()
    started = time.perf_counter()
    if iteration == config.start.step + 1 or not config.rollout.async_level:
        await rollout(run.id, "train", iteration, config.policy_step(iteration), config)
    figures = await asyncio.to_thread(port.store.figures, run.id, "train", iteration)
    _check_unscored(figures, config.coach.unscored_limit)
    async with _asleep(port.engine, config):
        updates = await _learn(run, iteration, config)
    await register(run, iteration)
    agents = [agent.name for agent in port.team.agents]
    await asyncio.to_thread(
        steps.retire_checkpoints, port.store, port.learner, run.id, agents, config
    )
    await watch.after(iteration)
    seconds = time.perf_counter() - started
    port.watcher.figures(figures, seconds)
    await _log_iteration(run, figures, updates, seconds)


async def _learn(run: Run, iteration: int, config: TrainConfig) -> list[Update]:
    """Every agent's update; one step off, the next iteration is played meanwhile."""
    if not config.rollout.async_level or iteration == config.rollout.iterations:
        return await _updates(run, iteration, config)
    step = config.policy_step(iteration + 1)
    # Before anybody learns: reading a model sets torch's defaults for the whole process meanwhile.
    await serve(run.id, step, planned(run.id, "train", iteration + 1, config))
    playing = rollout(run.id, "train", iteration + 1, step, config)
    learning = _updates(run, iteration, config)
    learnt, played = await asyncio.gather(learning, playing, return_exceptions=True)
    updates = _result(learnt)
    _result(played)
    return updates


def _result(outcome: T | BaseException) -> T:
    """What came of one of several that were all waited for, so that none goes on unseen."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _updates(run: Run, iteration: int, config: TrainConfig) -> list[Update]:
    """Every agent's update, in the team's order; some at once where that is configured."""
    port = services()
    slots = asyncio.Semaphore(config.learner.updates_at_once)

    async def one(agent: str) -> Update:
        async with slots:
            done = await update(run.id, agent, iteration, config)
        port.watcher.updated(agent, iteration, done.metrics)
        return done

    every = (one(agent.name) for agent in port.team.agents)
    return [_result(each) for each in await asyncio.gather(*every, return_exceptions=True)]


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


def _check_unscored(figures: IterationFigures, limit: float) -> None:
    unscored = sum(agent.unscored for agent in figures.agents)
    actions = sum(agent.actions for agent in figures.agents)
    if unscored > limit * actions:
        raise CoachError(
            f"the coach left {unscored} of {actions} actions of iteration {figures.iteration} "
            f"unscored (limit {limit:.0%}): see what failed with `mappa show`, then resume; "
            "only what is missing is asked again"
        )


async def _log_iteration(
    run: Run, figures: IterationFigures, updates: Sequence[Update], seconds: float
) -> None:
    metrics = steps.iteration_metrics(figures, updates, seconds)
    await asyncio.to_thread(
        services().tracker.log, run.mlflow_run_id or "", figures.iteration, metrics
    )
    await acreate_table_artifact(
        key=f"iteration-{figures.iteration:03d}",
        table=steps.iteration_table(figures, updates),
        description=f"{run.name}, iteration {figures.iteration}: success "
        f"{figures.successes} of {figures.episodes} episodes, {seconds:.0f} s",
    )


async def _log_comparison(run: Run, step: int, comparison: Comparison) -> None:
    await asyncio.to_thread(
        services().tracker.log, run.mlflow_run_id or "", step, comparison.metrics()
    )
    await acreate_table_artifact(
        key="before-and-after",
        table=comparison.table(),
        description=f"{run.name}: held-out problems before and after training, paired. "
        f"Curves and actions worth reading: `mappa report {run.name}`; MLflow run "
        f"{run.mlflow_run_id}.",
    )
