"""The training flow: rollout and scores, one update per agent, registration, measurement.

evaluate ─▶ [ rollout + coach_score ─▶ update per agent ─▶ register ─▶ table ] x iterations
         ─▶ evaluate ─▶ before and after

With `rollout.async_level=1` the next iteration is played beside the updates (`train`).
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_table_artifact

from flows import audit as auditing
from flows.dispatch import check_deployment
from flows.evaluate import compare_steps, evaluate_held_out
from flows.limits import global_limits
from flows.recorder import check_recorder_load
from flows.rollout import rollout
from flows.runs import prepared, recorded, stored_run
from flows.updates import learn
from mappa_core.app.checks import check_effects
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import open_services, services
from mappa_core.coach.protocols import BudgetedCoach
from mappa_core.core.errors import CoachError
from mappa_core.core.records.runs import IterationFigures, Run
from mappa_core.core.records.updates import Update
from mappa_core.core.settings import Settings
from mappa_core.evaluate.comparison import Comparison
from mappa_core.rollout.problems.drawing import check_enough
from mappa_core.tracking.iteration import iteration_metrics, iteration_table


@flow(name="train", flow_run_name="train {config.name}", persist_result=False)
async def train(config: TrainConfig, resume: str | None = None) -> Comparison:
    """Train a team, or go on with run `resume`; returns base against trained, held out.

    A retried Prefect run goes on with its own run. Whatever is in the store is not done again.

    Raises:
        ConfigError: The configuration cannot be run; nothing was written.
        MappaError: Something outside failed; the run can be resumed.
    """
    await check_deployment(config.learner.deployment)
    async with global_limits(), open_services(config, Settings(), get_run_logger()) as port:
        check_recorder_load(config, port.team)
        check_effects(config, port.team)
        check_enough(port.problems.train(), config.rollout.problems)
        await asyncio.to_thread(auditing.check_correction, config.audit, port)
        stored = await asyncio.to_thread(stored_run, config, resume)
        async with recorded(stored, partial(prepared, config=config)) as run:
            port.progress.on_run_started(run)
            if isinstance(port.coach, BudgetedCoach):
                port.coach.resume_budget(
                    await asyncio.to_thread(port.store.figures.get_coach_spending, run.id)
                )
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
    figures = await asyncio.to_thread(
        port.store.figures.get_iteration_figures, run.id, "train", iteration
    )
    _check_unscored(figures, config.coach.unscored_limit)
    updates = await learn(run, iteration, config)
    await watch.after(iteration)
    seconds = time.perf_counter() - started
    port.progress.on_iteration_ended(figures, seconds)
    await _log_iteration(run, figures, updates, seconds)


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
    metrics = iteration_metrics(figures, updates, seconds)
    await asyncio.to_thread(
        services().tracker.log, run.mlflow_run_id or "", figures.iteration, metrics
    )
    await acreate_table_artifact(
        key=f"iteration-{figures.iteration:03d}",
        table=iteration_table(figures, updates),
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
