"""The training flow: rollout and scores, one update per agent, registration, measurement.

evaluate ─▶ [ rollout + coach_score ─▶ update per agent ─▶ register ─▶ table ] x iterations
         ─▶ evaluate ─▶ before and after
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

from prefect import flow, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.runtime import flow_run

from flows import auditing
from flows.evaluate import compare_steps, evaluate_held_out
from flows.recorder import check_recorder_load
from flows.rollout import rollout
from mappa_core import steps
from mappa_core.bootstrap import code_version, open_services, services
from mappa_core.config import TrainConfig
from mappa_core.domain import ids
from mappa_core.domain.errors import CoachError, ConfigError, MappaError
from mappa_core.domain.records import IterationFigures, Run, RunStatus, Update
from mappa_core.evaluation.comparison import Comparison
from mappa_core.ports import BudgetedCoach, Engine, SleepingEngine
from mappa_core.settings import Settings


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
        async with _recorded(run):
            return await _train(run, config)


def open_run(config: TrainConfig, resume: str | None) -> Run:
    """The run in the store and the tracker, new or found again, with its base policies.

    Raises:
        NotFound: No run `resume`.
        ConfigError: It was started with another configuration.
    """
    port = services()
    flow_run_id = flow_run.get_id()
    run = Run(
        id=ids.content_id("run", flow_run_id or uuid4()),
        name=f"{config.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        team=config.team,
        config=config.model_dump(mode="json"),
        code_version=code_version(),
        seed=config.seed,
        sandbox_tier=port.sandbox.tier,
        started_at=datetime.now(UTC),
    )
    if resume is not None:
        run = port.store.run(resume)
        _check_same_config(run, config)
    port.store.open_run(run)
    run = port.store.run(str(run.id))
    tracker_id = port.tracker.start(replace(run, prefect_flow_run_id=flow_run_id))
    port.store.link_run(run.id, prefect_flow_run_id=flow_run_id, mlflow_run_id=tracker_id)
    port.store.close_run(run.id, RunStatus.RUNNING)
    for agent in port.team.agents:
        port.store.add_policy_version(steps.base_policy(run.id, agent.name, port.model))
    port.store.add_manifest(run.id, "train", port.problems.train())
    port.store.add_manifest(run.id, "held_out", port.problems.held_out())
    return port.store.run(str(run.id))


def _check_same_config(run: Run, config: TrainConfig) -> None:
    # An older run lacks the keys that came later; their defaults are what it ran with.
    different = TrainConfig.model_validate(run.config).same_experiment(config)
    if different:
        raise ConfigError(
            f"run {run.name} was started with another {', '.join(different)}: resume it as it "
            "was, or start a new run"
        )


@asynccontextmanager
async def _recorded(run: Run) -> AsyncGenerator[None]:
    """Have the run to ourselves, and write down how it ended, however it ended."""
    port = services()
    claim = await asyncio.to_thread(port.store.claim_run, run.id)
    status, error = RunStatus.FAILED, "stopped by an unexpected error; see the log"
    try:
        with claim:
            yield
        status, error = RunStatus.COMPLETED, None
    except asyncio.CancelledError:
        status, error = RunStatus.INTERRUPTED, None
        raise
    except MappaError as failure:
        error = str(failure)
        raise
    finally:
        port.store.close_run(run.id, status, error)
        port.tracker.end(run.mlflow_run_id or "", status)


async def _train(run: Run, config: TrainConfig) -> Comparison:
    await evaluate_held_out(run.id, 0, config)
    watch = auditing.Watch(run, config)
    for iteration in range(1, config.rollout.iterations + 1):
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
    await rollout(run.id, "train", iteration, iteration - 1, config)
    figures = await asyncio.to_thread(port.store.figures, run.id, "train", iteration)
    _check_unscored(figures, config.coach.unscored_limit)
    async with _asleep(port.engine, config):
        updates = await _updates(run, iteration, config)
    await register(run, iteration)
    if config.learner.keep_checkpoints is not None:
        await asyncio.to_thread(
            steps.retire_checkpoints,
            port.store,
            port.learner,
            run.id,
            [agent.name for agent in port.team.agents],
            config.learner.keep_checkpoints,
        )
    await watch.after(iteration)
    seconds = time.perf_counter() - started
    port.watcher.figures(figures, seconds)
    await _log_iteration(run, figures, updates, seconds)


async def _updates(run: Run, iteration: int, config: TrainConfig) -> list[Update]:
    """Every agent's update, in the team's order; some at once where that is configured."""
    port = services()
    slots = asyncio.Semaphore(config.learner.updates_at_once)

    async def one(agent: str) -> Update:
        async with slots:
            done = await update(run.id, agent, iteration, config)
        port.watcher.updated(agent, iteration, done.metrics)
        return done

    # All are waited for, so that none goes on behind an error's back; then the first is raised.
    results = await asyncio.gather(
        *(one(agent.name) for agent in port.team.agents), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Update)]


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
