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
from uuid import uuid4

from prefect import flow
from prefect.artifacts import acreate_table_artifact
from prefect.runtime import flow_run

from flows import auditing
from flows.dispatch import check_deployment
from flows.evaluate import compare_steps, evaluate_held_out
from flows.learning import learn
from flows.limits import global_limits
from flows.recorder import check_recorder_load
from flows.rollout import rollout
from mappa_core import steps
from mappa_core.bootstrap import code_version, open_services, services
from mappa_core.config import TrainConfig
from mappa_core.domain import ids
from mappa_core.domain.errors import CoachError, ConfigError, MappaError
from mappa_core.domain.records import IterationFigures, Run, RunStatus, Update
from mappa_core.evaluation.comparison import Comparison
from mappa_core.ports import BudgetedCoach
from mappa_core.settings import Settings


@flow(name="train", flow_run_name="train {config.name}", persist_result=False)
async def train(config: TrainConfig, resume: str | None = None) -> Comparison:
    """Train a team, or go on with run `resume`; returns base against trained, held out.

    A retried Prefect run goes on with its own run. Whatever is in the store is not done again.

    Raises:
        ConfigError: The configuration cannot be run; nothing was written.
        MappaError: Something outside failed; the run can be resumed.
    """
    await check_deployment(config.learner.deployment)
    async with global_limits(), open_services(config, Settings()) as port:
        check_recorder_load(config, port.team)
        await asyncio.to_thread(auditing.check_correction, config.audit, port)
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
    updates = await learn(run, iteration, config)
    await watch.after(iteration)
    seconds = time.perf_counter() - started
    port.watcher.figures(figures, seconds)
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
