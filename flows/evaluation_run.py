"""Which run an evaluation is written to: the one it measures, or one beside it.

RUN                as it was set up, or with more samples
RUN-eval-1a2b3c    under other settings, so that results never mix; found again by them
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from flows.ending import sigterm_cancels
from flows.runs import link, recorded
from mappa_core.app.config import TrainConfig
from mappa_core.app.machine import code_version
from mappa_core.app.services import services
from mappa_core.core import ids
from mappa_core.core.records.runs import Run, evaluation_name
from mappa_core.train.update import policy_at

_LIMITS = {
    "wall_seconds",
    "cpu_seconds",
    "memory_mib",
    "processes",
    "workspace_mib",
    "file_mib",
    "output_kib",
}
_MEASURED = {
    "prompts": True,
    "seed": True,
    "problems": True,
    "tools": True,
    "rollout": {"max_tokens"},
    "engine": {"dtype", "max_model_length"},
    "sandbox": {"runtime", *_LIMITS},
    "evaluation": {"temperature"},
}
"""Keys of a configuration that decide what a held-out episode of given weights is like."""


def measured(config: TrainConfig) -> str:
    """What of a configuration decides what held-out episodes are like, as JSON."""
    return json.dumps(config.model_dump(mode="json", include=_MEASURED), sort_keys=True)


@asynccontextmanager
async def written_to(run: Run, config: TrainConfig, steps: tuple[int, ...]) -> AsyncGenerator[Run]:
    """The run that holds the evaluation of `run` after so many updates, to ourselves.

    How `run` ended is left as it is; one beside it ends as the block does.

    Raises:
        RunBusy: Another process trains `run`, or evaluates it in the same way.
    """
    store = services().store
    if measured(config) == measured(TrainConfig.model_validate(run.config)):
        with await asyncio.to_thread(store.runs.claim_run, run.id), sigterm_cancels():
            yield run
        return
    beside = _beside(run, config)
    await asyncio.to_thread(store.runs.add_run, beside)
    stored = await asyncio.to_thread(store.runs.get_run, str(beside.id))
    async with recorded(stored, lambda opened: _prepared(opened, run, steps)) as opened:
        yield opened


def _beside(run: Run, config: TrainConfig) -> Run:
    identity = ids.content_id("evaluation", run.id, measured(config))
    return Run(
        id=identity,
        name=evaluation_name(run, identity),
        team=run.team,
        config=config.model_dump(mode="json"),
        code_version=code_version(),
        seed=config.seed,
        sandbox_tier=services().sandbox.tier,
        started_at=datetime.now(UTC),
    )


def _prepared(beside: Run, run: Run, steps: tuple[int, ...]) -> Run:
    """With its links to the other systems, its problems and the policies that it measures."""
    port = services()
    link(beside)
    port.store.runs.add_manifest(beside.id, "held_out", port.problems.held_out())
    for agent in port.team.agents:
        for step in steps:
            policy = policy_at(port.store, run.id, agent.name, step)
            identity = ids.policy_version_id(beside.id, agent.name, step)
            port.store.policies.add_policy_version(replace(policy, id=identity, run_id=beside.id))
    return port.store.runs.get_run(str(beside.id))
