"""Measuring policies on held-out problems; no coach is needed.

evaluate_held_out   one policy step of a run, as a sub-flow of training or on its own
evaluate            base against a later step of a stored run, paired by problem
"""

import asyncio
from uuid import UUID

from prefect import flow

from flows.rollout import rollout
from mappa_core.bootstrap import open_services, opened_store, services
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import NotFound
from mappa_core.domain.records import Run
from mappa_core.evaluation.comparison import Comparison, compare
from mappa_core.settings import Settings


@flow(name="evaluate_held_out", flow_run_name="evaluate step {step}", persist_result=False)
async def evaluate_held_out(run_id: UUID, step: int, config: TrainConfig) -> None:
    """Play the held-out problems with every agent's policy after `step` updates."""
    await rollout(run_id, "held_out", step, step, config)


async def compare_steps(run_id: UUID, before: int, after: int, config: TrainConfig) -> Comparison:
    """Two steps of one run on the same held-out problems, paired."""
    store = services().store
    outcomes = [
        await asyncio.to_thread(store.outcomes, run_id, "held_out", step)
        for step in (before, after)
    ]
    return compare(*outcomes, resamples=config.evaluation.bootstrap, seed=config.seed)


@flow(name="evaluate", flow_run_name="evaluate {run_name}", persist_result=False)
async def evaluate(
    run_name: str, config: TrainConfig | None = None, step: int | None = None
) -> Comparison:
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
    async with open_services(config, Settings()) as port:
        run = await asyncio.to_thread(port.store.run, run_name)
        last = await asyncio.to_thread(last_step, run)
        after = last if step is None else step
        if not 0 < after <= last:
            raise NotFound(
                f"run {run.name} has policies after 1 to {last} updates, not {after}"
                if last
                else f"run {run.name} has not finished an update yet: nothing to compare"
            )
        for played in (0, after):
            await evaluate_held_out(run.id, played, config)
        return await compare_steps(run.id, 0, after, config)


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
