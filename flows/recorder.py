"""What Prefect's recorder can take, and when it has taken it.

Task runs reach the server as events, three each; one process writes them to the database at 20 to
40 task runs a second. What waits sits in a queue of 10,000 events, and what does not fit is
dropped: the flow run says Completed and its task runs are not there.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import httpx

from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.rollout.teams.base import Team

BURST_TASK_RUNS = 2500
"""Of 3,000 task runs sent at once all arrived; of 6,000 almost half were lost without an error."""
DRAIN_SECONDS = 150.0
"""At most; a burst of 2,500 at 20 a second takes 125."""
SETTLED_SECONDS = 2.0
"""Without a new row, after which nothing more is expected."""
POLL_SECONDS = 0.3

Filter = Mapping[str, Mapping[str, Mapping[str, object]]]


def check_recorder_load(config: TrainConfig, team: Team) -> None:
    """Refuse a run one of whose phases could make more task runs than Prefect records.

    Raises:
        ConfigError: Too many; the message says how to have fewer.
    """
    worst = max(task_runs_of_phases(config, team).items(), key=lambda phase: phase[1])
    phase, task_runs = worst
    if task_runs <= BURST_TASK_RUNS:
        return
    fewer = (
        "set rollout.granularity=episode"
        if config.rollout.granularity == "action"
        else f"lower {'problems.held_out_size' if phase == 'evaluation' else 'rollout.problems'}"
    )
    raise ConfigError(
        f"one {phase} would make up to {task_runs} Prefect task runs and its recorder loses some "
        f"beyond {BURST_TASK_RUNS}: {fewer}"
    )


def task_runs_of_phases(config: TrainConfig, team: Team) -> Mapping[str, int]:
    """Task runs of one training iteration and of one evaluation, at most.

    An episode is one, and its scoring another; with granularity `action` each of its actions and
    each run of its code is one more.
    """
    rollout = config.rollout
    inside = 0
    if rollout.granularity == "action":
        inside = 2 * sum(agent.max_turns for agent in team.agents)
    return {
        "iteration": rollout.problems * rollout.episodes_per_problem * (2 + inside),
        "evaluation": config.problems.held_out_size * config.evaluation.samples * (1 + inside),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Task runs the server knows of."""

    total: int
    unfinished: int


def drain(api_url: str, *, since: datetime) -> None:
    """Wait until Prefect has recorded the task runs of flow runs that started after `since`.

    A server stopped earlier would for ever show tasks that run in flows that are over. Gives up
    after `DRAIN_SECONDS`, or when nothing has arrived for a while: a killed task never ends. There
    is nothing to wait for where the server is gone.
    """
    with suppress(httpx.HTTPError):
        _drain(api_url, since)


def _drain(api_url: str, since: datetime) -> None:
    flow_runs: Filter = {"flow_runs": {"start_time": {"after_": since.isoformat()}}}
    deadline = time.monotonic() + DRAIN_SECONDS
    with httpx.Client(base_url=api_url, timeout=10, trust_env=False) as client:
        if not _count(client, "flow_runs", flow_runs):
            return
        last, settled_at = _recorded(client, flow_runs), time.monotonic() + SETTLED_SECONDS
        while time.monotonic() < min(settled_at, deadline):
            time.sleep(POLL_SECONDS)
            now = _recorded(client, flow_runs)
            if now != last:
                patience = SETTLED_SECONDS * (2 if now.unfinished else 1)
                last, settled_at = now, time.monotonic() + patience


def _recorded(client: httpx.Client, flow_runs: Filter) -> Recorded:
    unfinished: Filter = {"task_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}}}
    total = _count(client, "task_runs", flow_runs)
    running = _count(client, "task_runs", {**flow_runs, **unfinished})
    return Recorded(total=total, unfinished=running)


def _count(client: httpx.Client, what: str, among: Filter) -> int:
    return client.post(f"{what}/count", json=among).raise_for_status().json()
