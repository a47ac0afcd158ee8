"""`mappa bench orchestration`: when engine, sandbox, coach and learner all rest.

Beside it, what a task run of Prefect costs: by that `rollout.granularity=auto` decides whether
actions are recorded at at most 5 % of the time.
"""

import os
import time
from collections.abc import Iterator, Sequence

from mappa_cli.benches.metering import Meter, metered, on_training
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_cli.benches.task_runs import TaskRunCost, measured_task_runs
from mappa_core.app.config import TrainConfig
from mappa_core.app.recording import CALLER_SECONDS, RECORDER_SECONDS, seconds_each
from mappa_core.core.settings import Settings

AIM = 0.05
NO_COST = "what a task run costs: Prefect's server is no child of this process, or never at rest"
MOST_BESIDE = 1.25
"""What a task run may cost, beside what `auto` takes it for."""


def bench_orchestration(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Train for two iterations, and take the time in which nothing outside was busy."""
    return on_training(_measured, overrides, settings)


async def _measured(config: TrainConfig, settings: Settings) -> BenchReport:
    from flows.train import train

    meter = Meter()
    async with metered(config, settings, meter):
        started = time.perf_counter()
        await train(config)
        wall = time.perf_counter() - started
        cost = await measured_task_runs()
    outside = 1 - meter.busy_seconds() / wall
    return BenchReport(
        bench="orchestration",
        figures=(
            Figure(name="wall time", value=wall, unit="s"),
            Figure(
                name="engine, sandbox, coach or learner busy", value=wall * (1 - outside), unit="s"
            ),
            aimed("outside of them", outside, "share", at_most=AIM),
            *(() if cost is None else task_run_figures(cost, len(os.sched_getaffinity(0)))),
        ),
        absent=() if cost else (NO_COST,),
    )


def task_run_figures(cost: TaskRunCost, cores: int) -> Iterator[Figure]:
    """List what a task run costs, and that beside what `auto` takes it for on so many cores."""
    yield Figure(name="a task run, of the run's process", value=1000 * cost.caller, unit="ms")
    yield Figure(name="a task run, of Prefect's server", value=1000 * cost.server, unit="ms")
    taken = seconds_each(cores, caller=cost.caller, server=cost.server)
    yield aimed(
        f"the two, beside the {1000 * CALLER_SECONDS:g} and {1000 * RECORDER_SECONDS:g} ms that "
        "granularity=auto takes them for",
        taken / seconds_each(cores),
        "ratio",
        at_most=MOST_BESIDE,
    )
