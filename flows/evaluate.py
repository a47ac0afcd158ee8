"""Measuring policies on held-out problems; no coach is needed.

evaluate_held_out   one policy step of a run, as a sub-flow of training or on its own
evaluate            base against a later step of a stored run, paired by problem

A run is evaluated as it was set up. Asked for another temperature, token budget or other problems,
an evaluation becomes a run of its own beside it (`beside`).
"""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_table_artifact

from flows.evaluation_run import written_to
from flows.limits import global_limits
from flows.recorder import check_recorder_load
from flows.rollout import rollout
from mappa_core.app.checks import check_same_weights
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import open_services, services
from mappa_core.core.errors import NotFound
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted
from mappa_core.evaluate.comparison import Comparison, compare
from mappa_core.evaluate.report import Report, report, skills_of, successes_of
from mappa_core.evaluate.steps import last_step
from mappa_core.store.opening import opened_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A team before and after training, on the same held-out problems with the same seeds."""

    run: str
    """Under this name the episodes are in the store."""
    before: Report
    after: Report
    success: Comparison
    skill: Comparison | None
    """Where tasks are measured and not only right or wrong."""

    def metrics(self) -> dict[str, float]:
        """For the tracker and for scripts."""
        found = {**self.after.metrics(), **self.success.metrics()}
        if self.skill is not None:
            found |= self.skill.metrics("held_out/skill")
        return found


@flow(name="evaluate_held_out", flow_run_name="evaluate step {step}", persist_result=False)
async def evaluate_held_out(run_id: UUID, step: int, config: TrainConfig) -> Report:
    """Play the held-out problems with every agent's policy after `step` updates, and sum up."""
    await rollout(run_id, "held_out", step, step, config)
    port = services()
    told = await _report(run_id, step)
    run = await asyncio.to_thread(port.store.runs.get_run, str(run_id))
    await asyncio.to_thread(port.tracker.log, run.mlflow_run_id or "", step, told.metrics())
    description = f"{run.name}, held-out problems after {counted(step, 'update')}"
    for key, table in (("figures", told.table()), ("agents", told.agents_table())):
        await acreate_table_artifact(
            key=f"held-out-{step:03d}-{key}", table=table, description=description
        )
    return told


async def compare_steps(run_id: UUID, before: int, after: int, config: TrainConfig) -> Comparison:
    """Success at two steps of one run on the same held-out problems, paired."""
    return (await _compared(run_id, before, after, config))[0]


async def _compared(
    run_id: UUID, before: int, after: int, config: TrainConfig
) -> tuple[Comparison, Comparison | None]:
    store = services().store
    earlier, later = [
        await asyncio.to_thread(store.episodes.list_episodes, run_id, "held_out", step)
        for step in (before, after)
    ]
    drawn = {"resamples": config.evaluation.bootstrap, "seed": config.seed}
    success = compare(successes_of(earlier), successes_of(later), **drawn)
    skills = skills_of(earlier), skills_of(later)
    return success, compare(*skills, **drawn) if all(skills) else None


async def _report(run_id: UUID, step: int) -> Report:
    store = services().store
    episodes = await asyncio.to_thread(store.episodes.list_episodes, run_id, "held_out", step)
    figures = await asyncio.to_thread(store.figures.get_iteration_figures, run_id, "held_out", step)
    return report(step, episodes, figures.agents)


@flow(name="evaluate", flow_run_name="evaluate {run_name}", persist_result=False)
async def evaluate(
    run_name: str, config: TrainConfig | None = None, step: int | None = None
) -> Evaluation:
    """Compare a stored run's base team with its team after `step` updates (default: the last).

    Episodes that are already in the store are read, not played again.

    Args:
        run_name: Name, id or a prefix of either.
        config: How to measure; default as the run was configured.
        step: Updates the policies had had; default the last.

    Raises:
        NotFound: No such run, or it has no policy at that step.
        ConfigError: Another team or model, or more episodes than Prefect records.
        RunBusy: Another process trains it, or evaluates it in the same way.
    """
    config = config or await asyncio.to_thread(_config_of, run_name)
    async with global_limits(), open_services(config, Settings(), get_run_logger()) as port:
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
        async with written_to(run, config, (0, after)) as own:
            return await _evaluated(own, after, config)


async def _evaluated(run: Run, after: int, config: TrainConfig) -> Evaluation:
    reports = [await evaluate_held_out(run.id, played, config) for played in (0, after)]
    success, skill = await _compared(run.id, 0, after, config)
    found = Evaluation(
        run=run.name, before=reports[0], after=reports[1], success=success, skill=skill
    )
    tracker, tracker_id = services().tracker, run.mlflow_run_id or ""
    await asyncio.to_thread(tracker.log, tracker_id, after, found.metrics())
    return found


def _config_of(run_name: str) -> TrainConfig:
    with opened_store(Settings()) as store:
        return TrainConfig.model_validate(store.runs.get_run(run_name).config)
