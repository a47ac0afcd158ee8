"""The training flow: rollout and scores, one update per agent, registration, measurement.

evaluate ─▶ [ rollout + coach_score ─▶ update per agent ─▶ register ─▶ table ─▶ ask ] x iterations
         ─▶ evaluate ─▶ before and after

With `rollout.async_level=1` the next iteration is played beside the updates. Both have ended before
anything else loads weights, so which policy plays an iteration never depends on which was faster.

A resumed or retried run plays this flow again and skips what the store has:
    an episode's turns   rollout.episode        a score that trained      coach.scoring
    an agent's update    train.update           a registered checkpoint   evaluate.registration
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeAlias

from prefect import flow, get_run_logger, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.events import emit_event

from flows.asking import asked
from flows.audit import Watch, run_resource
from flows.dispatch import check_deployment
from flows.evaluate import evaluate_held_out
from flows.limits import global_limits
from flows.pages import show_end, shown
from flows.recording import Recording
from flows.rollout import loads_ahead, planned, rollout, serve, solve_ahead
from flows.runs import open_run
from flows.update import update_task
from mappa_core.app.checks import check_caps, check_correction, check_reading, check_run, kinds_of
from mappa_core.app.config import TrainConfig
from mappa_core.app.exam import check_exam
from mappa_core.app.fitting import Despite
from mappa_core.app.services import Services, open_services, services
from mappa_core.coach.protocols import BudgetedCoach
from mappa_core.core.concurrency import all_ended, beside, result_of
from mappa_core.core.errors import CoachError, OutsideError
from mappa_core.core.records.runs import IterationFigures, Run
from mappa_core.core.records.updates import Update
from mappa_core.core.settings import Settings
from mappa_core.evaluate.comparison import Comparison
from mappa_core.evaluate.evaluation import evaluation
from mappa_core.evaluate.registration import register_policies
from mappa_core.rollout.protocols import Engine, SleepingEngine
from mappa_core.tracking.iteration import iteration_metrics, iteration_table
from mappa_core.train.retention import best_steps
from mappa_core.train.update import policy_at

Begin: TypeAlias = Callable[[Coroutine[object, object, None]], None]
"""Starts work that nobody waits for (`beside`)."""


@flow(name="train", flow_run_name="train {config.name}", persist_result=False)
async def train(
    config: TrainConfig, resume: str | None = None, despite: tuple[Despite, ...] = ()
) -> Comparison:
    """Train a team, or go on with run `resume`; returns base against trained, held out.

    A retried Prefect run goes on with its own run. Whatever is in the store is not done again.

    Args:
        config: The run's.
        resume: Name, id or a prefix of either; None for a new run.
        despite: Refusals to overrule: a `memory` plan or a `disk` estimate that do not fit.

    Raises:
        ConfigError: The configuration cannot be run; nothing was written.
        MappaError: Something outside failed; the run can be resumed.
    """
    await check_deployment(config.learner.deployment)
    last, every = config.rollout.iterations, config.evaluation.every
    resumes = resume is not None
    opening = open_services(config, Settings(), get_run_logger(), resumes=resumes, despite=despite)
    async with global_limits(), opening as port:
        check_run(config, port.team, port.problems)
        check_reading(port.coaches, port.team, port.problems)
        await asyncio.to_thread(
            check_correction, config.audit, port.audit, port.scoring_coach.identity
        )
        if not resumes:
            check_caps(config.coach, port.team, kinds_of(port.problems))
        if not resumes and port.audit is not None:
            tell = port.progress.on_notice
            await check_exam(port.scoring_coach, port.team, config, port.audit, tell)
        async with open_run(port, config, resume) as run, shown(port, run):
            port.progress.on_run_started(run)
            if isinstance(port.coach, BudgetedCoach):
                spent = await asyncio.to_thread(port.store.figures.get_coach_spending, run.id)
                port.coach.resume_budget(spent)
            watch, recording = Watch(port, run, config), Recording(port, run.id)
            first = config.start.step + 1
            # A load that is cut short costs its server a restart.
            async with beside(waits=True) as begin_load, beside() as begin:
                begin(solve_ahead(port, run.id, first, config))
                async with recording.watched("held_out", 0):
                    before = await evaluate_held_out(run.id, 0, config)
                for iteration in range(first, last + 1):
                    begin(solve_ahead(port, run.id, iteration + 1, config))
                    async with recording.watched("train", iteration):
                        recorded = recording.chosen(config, "train")
                        await _iterate(port, run, iteration, recorded, watch, begin_load)
                    config = await asked(port, run, iteration, config)
                    if every and iteration % every == 0 and iteration < last:
                        recorded = recording.chosen(config, "held_out")
                        await evaluate_held_out(run.id, iteration, recorded)
                if not config.registers_every:
                    best = await asyncio.to_thread(
                        best_steps, port.store, run.id, config.rollout.async_level
                    )
                    await register(run, last, best)
                after = await evaluate_held_out(run.id, last, recording.chosen(config, "held_out"))
            seed, resamples = config.seed, config.evaluation.bootstrap
            found = evaluation(run.name, before, after, resamples=resamples, seed=seed)
            await show_end(port, run, last, found.success)
            return found.success


async def _iterate(
    port: Services,
    run: Run,
    iteration: int,
    config: TrainConfig,
    watch: Watch,
    begin_load: Begin,
) -> None:
    """Do one round: play, score, learn, register, show."""
    started = time.perf_counter()
    if iteration == config.start.step + 1 or not config.rollout.async_level:
        await rollout(run.id, "train", iteration, config.policy_step(iteration), config)
    figures = await asyncio.to_thread(
        port.store.figures.get_iteration_figures, run.id, "train", iteration
    )
    _check_unscored(figures, config.coach.unscored_limit)
    async with _asleep(port.engine):
        updates = await _learn(port, run, iteration, config, begin_load)
    if config.registers_every:
        await register(run, iteration, {})
    await watch.after(iteration)
    seconds = time.perf_counter() - started
    await _show_iteration(port, run, figures, updates, seconds)
    _forget_results()
    port.progress.on_iteration_ended(figures, seconds)


def _forget_results() -> None:
    """Have Prefect forget what the iteration's tasks gave: by itself it does when the flow ends.

    It keeps it to name the tasks whose results later ones are given, and no later ones are.
    """
    if (context := FlowRunContext.get()) is not None:
        context.run_results.clear()
        context.task_run_assets.clear()


async def _learn(
    port: Services, run: Run, iteration: int, config: TrainConfig, begin_load: Begin
) -> list[Update]:
    """Update every agent, in the team's order; one step off, play the next iteration meanwhile."""
    following, step = iteration + 1, config.policy_step(iteration + 1)
    one_off = bool(config.rollout.async_level) and iteration < config.rollout.iterations
    if one_off:
        # Before any update: reading a model sets torch's defaults for the whole process meanwhile.
        episodes = planned(port.problems, run.id, "train", following, config)
        await serve(port, run.id, step, episodes)
    ahead = not one_off and loads_ahead(port.engine)

    async def learnt(agent: str) -> Update:
        update = await update_task(run.id, agent, iteration, config)
        if ahead:
            begin_load(_load_ahead(port, run, agent, iteration))
        return update

    updates = all_ended(
        (partial(learnt, agent.name) for agent in port.team.agents),
        at_once=config.learner.updates_at_once,
    )
    if not one_off:
        return await updates
    playing = rollout(run.id, "train", following, step, config)
    updated, played = await asyncio.gather(updates, playing, return_exceptions=True)
    done = result_of(updated)
    result_of(played)
    return done


async def _load_ahead(port: Services, run: Run, agent: str, step: int) -> None:
    """Have an agent's new weights served while others learn or play; its requests wait for it."""
    # What fails here fails again where it is needed, and is told there.
    with suppress(OutsideError):
        policies = port.store.policies
        later = await asyncio.to_thread(policies.get_policy_version, run.id, agent, step + 1)
        # A resumed run may have retired these.
        if later is None:
            policy = await asyncio.to_thread(policy_at, port.store, run.id, agent, step)
            await port.engine.load(policy)


@task(
    name="register",
    task_run_name="register iteration {iteration}",
    cache_policy=NO_CACHE,
    retries=3,
    retry_delay_seconds=2,
    persist_result=False,
)
async def register(run: Run, iteration: int, best: Mapping[str, int]) -> None:
    """Register the iteration's checkpoints as `candidate`, and let automations know of new ones.

    Those of the steps that `best` names by agent come before them.
    """
    port = services()
    registered = await asyncio.to_thread(
        register_policies, run, iteration, registry=port.registry, store=port.store, also=best
    )
    if registered:
        emit_event(
            "mappa.update.registered",
            resource=run_resource(run.name),
            payload={"step": iteration, "versions": list(registered)},
        )


@asynccontextmanager
async def _asleep(engine: Engine) -> AsyncGenerator[None]:
    """Leave the engine's memory to the learner inside the block, where they share a GPU."""
    if not isinstance(engine, SleepingEngine):
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


async def _show_iteration(
    port: Services,
    run: Run,
    figures: IterationFigures,
    updates: Sequence[Update],
    seconds: float,
) -> None:
    metrics = iteration_metrics(figures, updates, seconds)
    await asyncio.to_thread(port.tracker.log, run.mlflow_run_id or "", figures.iteration, metrics)
    await acreate_table_artifact(
        key=f"iteration-{figures.iteration:03d}",
        table=iteration_table(figures, updates),
        description=f"{run.name}, iteration {figures.iteration}: success "
        f"{figures.successes} of {figures.episodes} episodes, {seconds:.0f} s",
    )
