"""Measuring policies on held-out problems; no coach is needed.

evaluate_held_out   one policy step of a run, as a sub-flow of training or on its own
evaluate            base against a later step of a stored run, paired by problem

A run is evaluated as it was set up. Asked for another temperature, token budget or other problems,
an evaluation becomes a run of its own beside it: results under different settings never mix.
"""

import asyncio
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_table_artifact

from flows.ending import sigterm_cancels
from flows.limits import global_limits
from flows.rollout import rollout
from mappa_core.bootstrap import code_version, open_services, opened_store, services
from mappa_core.config import TrainConfig
from mappa_core.domain import ids
from mappa_core.domain.counting import counted
from mappa_core.domain.errors import NotFound
from mappa_core.domain.records import Run, RunStatus
from mappa_core.evaluation.comparison import Comparison, compare
from mappa_core.evaluation.report import Report, report, skills_of, successes_of
from mappa_core.settings import Settings
from mappa_core.steps import policy_at

_MEASURED = {
    "prompts": True,
    "seed": True,
    "problems": True,
    "rollout": {"max_tokens"},
    "engine": {"dtype", "max_model_length"},
    "sandbox": {
        "runtime",
        "wall_seconds",
        "cpu_seconds",
        "memory_mib",
        "processes",
        "workspace_mib",
        "file_mib",
    },
    "evaluation": {"temperature"},
}
"""Keys of a configuration that decide what a held-out episode is like."""


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
    run = await asyncio.to_thread(port.store.run, str(run_id))
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
        await asyncio.to_thread(store.held_out_episodes, run_id, step) for step in (before, after)
    ]
    drawn = {"resamples": config.evaluation.bootstrap, "seed": config.seed}
    success = compare(successes_of(earlier), successes_of(later), **drawn)
    skills = skills_of(earlier), skills_of(later)
    return success, compare(*skills, **drawn) if all(skills) else None


async def _report(run_id: UUID, step: int) -> Report:
    store = services().store
    episodes = await asyncio.to_thread(store.held_out_episodes, run_id, step)
    figures = await asyncio.to_thread(store.figures, run_id, "held_out", step)
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
    """
    config = config or await asyncio.to_thread(_config_of, run_name)
    async with global_limits(), open_services(config, Settings(), get_run_logger()) as port:
        run = await asyncio.to_thread(port.store.run, run_name)
        last = await asyncio.to_thread(last_step, run)
        after = last if step is None else step
        if not 0 < after <= last:
            raise NotFound(
                f"run {run.name} has policies after 1 to {last} updates, not {after}"
                if last
                else f"run {run.name} has not finished an update yet: nothing to compare"
            )
        trained = run
        if measured(config) != measured(TrainConfig.model_validate(run.config)):
            run = await asyncio.to_thread(_beside, run, config, (0, after))
        with sigterm_cancels():
            reports = [await evaluate_held_out(run.id, played, config) for played in (0, after)]
        success, skill = await _compared(run.id, 0, after, config)
        found = Evaluation(
            run=run.name, before=reports[0], after=reports[1], success=success, skill=skill
        )
        tracker_id = run.mlflow_run_id or ""
        await asyncio.to_thread(port.tracker.log, tracker_id, after, found.metrics())
        if run != trained:
            await asyncio.to_thread(port.store.close_run, run.id, RunStatus.COMPLETED)
            await asyncio.to_thread(port.tracker.end, tracker_id, RunStatus.COMPLETED)
        return found


def measured(config: TrainConfig) -> str:
    """What of a configuration decides what held-out episodes are like, as JSON."""
    return json.dumps(config.model_dump(mode="json", include=_MEASURED), sort_keys=True)


def _beside(run: Run, config: TrainConfig, steps: tuple[int, ...]) -> Run:
    """A run that holds the evaluation of `run` under another configuration; found again by it."""
    port = services()
    wanted = ids.content_id("evaluation", run.id, measured(config))
    port.store.open_run(
        Run(
            id=wanted,
            name=f"{run.name}-eval-{wanted.hex[:6]}",
            team=run.team,
            config=config.model_dump(mode="json"),
            code_version=code_version(),
            seed=config.seed,
            sandbox_tier=port.sandbox.tier,
            started_at=datetime.now(UTC),
        )
    )
    beside = port.store.run(str(wanted))
    tracker_id = port.tracker.start(beside)
    port.store.link_run(wanted, prefect_flow_run_id=None, mlflow_run_id=tracker_id)
    port.store.add_manifest(wanted, "held_out", port.problems.held_out())
    for agent in port.team.agents:
        for step in steps:
            policy = policy_at(port.store, run.id, agent.name, step)
            identity = ids.policy_version_id(wanted, agent.name, step)
            port.store.add_policy_version(replace(policy, id=identity, run_id=wanted))
    return port.store.run(str(wanted))


def _config_of(run_name: str) -> TrainConfig:
    with opened_store(Settings()) as store:
        return TrainConfig.model_validate(store.run(run_name).config)


def last_step(run: Run) -> int:
    """How many updates every agent of a run has finished."""
    port = services()
    steps_of = {agent.name: 0 for agent in port.team.agents}
    for policy, _ in port.store.checkpoints(run.id):
        steps_of[policy.agent] = max(steps_of[policy.agent], policy.step)
    return min(steps_of.values())
