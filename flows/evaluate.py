"""Measuring policies on held-out problems; no coach is needed.

evaluate_held_out   one policy step of a run, as a sub-flow of training or on its own
evaluate            base against a later step of a stored run, paired by problem

A run is evaluated as it was set up. Asked for another temperature, token budget or other problems,
an evaluation becomes a run of its own (`open_evaluation`).
"""

import asyncio
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_table_artifact

from flows.limits import global_limits
from flows.rollout import rollout
from flows.runs import open_evaluation
from mappa_core.app.checks import check_same_weights
from mappa_core.app.config import TrainConfig
from mappa_core.app.played_types import as_played
from mappa_core.app.recording import check_recorder_load
from mappa_core.app.services import Services, open_services, services
from mappa_core.core.errors import NotFound
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted
from mappa_core.evaluate.evaluation import Evaluation, HeldOut, evaluation
from mappa_core.evaluate.report import report
from mappa_core.evaluate.steps import last_step
from mappa_core.store.opening import opened_store


@flow(name="evaluate_held_out", flow_run_name="evaluate step {step}", persist_result=False)
async def evaluate_held_out(run_id: UUID, step: int, config: TrainConfig) -> HeldOut:
    """Play the held-out problems with every agent's policy after `step` updates, and sum up."""
    await rollout(run_id, "held_out", step, step, config)
    port = services()
    store = port.store
    episodes = await asyncio.to_thread(store.episodes.list_episodes, run_id, "held_out", step)
    figures = await asyncio.to_thread(store.figures.get_iteration_figures, run_id, "held_out", step)
    told = report(step, episodes, figures.agents)
    run = await asyncio.to_thread(store.runs.get_run, str(run_id))
    await asyncio.to_thread(port.tracker.log, run.mlflow_run_id or "", step, told.metrics())
    description = f"{run.name}, held-out problems after {counted(step, 'update')}"
    for key, table in (("figures", told.table()), ("agents", told.agents_table())):
        await acreate_table_artifact(
            key=f"held-out-{step:03d}-{key}", table=table, description=description
        )
    return HeldOut(report=told, episodes=episodes)


@flow(name="evaluate", flow_run_name="evaluate {run_name}", persist_result=False)
async def evaluate(
    run_name: str,
    config: TrainConfig | None = None,
    step: int | None = None,
    by: tuple[str, ...] = (),
) -> Evaluation:
    """Compare a stored run's base team with its team after `step` updates (default: the last).

    Episodes that are already in the store are read, not played again.

    Args:
        run_name: Name, id or a prefix of either.
        config: How to measure; default as the run was configured.
        step: Updates the policies had had; default the last.
        by: Attributes of problems to break it down by, beside task type and contest.

    Raises:
        NotFound: No such run, or it has no policy at that step.
        ConfigError: Another team or model, an attribute that no problem has, or more episodes than
            Prefect records.
        RunBusy: Another process trains it, or evaluates it in the same way.
    """
    config = config or await asyncio.to_thread(_config_of, run_name)
    services_opened = open_services(config, Settings(), get_run_logger(), trains=False)
    async with global_limits(), services_opened as port:
        check_recorder_load(config, port.team)
        run = await asyncio.to_thread(port.store.runs.get_run, run_name)
        check_same_weights(run, config, "an evaluation")
        policies = await asyncio.to_thread(port.store.policies.list_policy_versions, run.id)
        last = last_step(policies)
        after = last if step is None else step
        if not 0 < after <= last:
            raise NotFound(
                f"run {run.name} has policies after 1 to {last} updates, not {after}"
                if last
                else f"run {run.name} has not finished an update yet: nothing to compare"
            )
        async with open_evaluation(port, run, config, (0, after)) as opened:
            return await _evaluated(port, opened, after, config, by)


async def _evaluated(
    port: Services, run: Run, after: int, config: TrainConfig, by: tuple[str, ...]
) -> Evaluation:
    found = evaluation(
        run.name,
        await evaluate_held_out(run.id, 0, config),
        await evaluate_held_out(run.id, after, config),
        resamples=config.evaluation.bootstrap,
        seed=config.seed,
        by=by,
    )
    await asyncio.to_thread(port.tracker.log, run.mlflow_run_id or "", after, found.metrics())
    return found


def _config_of(run_name: str) -> TrainConfig:
    with opened_store(Settings()) as store:
        run = store.runs.get_run(run_name)
        return as_played(run, TrainConfig.model_validate(run.config))
