"""`mappa bench orchestration`: when engine, sandbox, coach and learner all rest."""

import time
from collections.abc import Sequence

from mappa_cli.benches.metering import Meter, metered, on_training
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.app.config import TrainConfig
from mappa_core.core.settings import Settings

AIM = 0.05


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
    outside = 1 - meter.busy_seconds() / wall
    return BenchReport(
        bench="orchestration",
        figures=(
            Figure(name="wall time", value=wall, unit="s"),
            Figure(
                name="engine, sandbox, coach or learner busy", value=wall * (1 - outside), unit="s"
            ),
            aimed("outside of them", outside, "share", at_most=AIM),
        ),
    )
