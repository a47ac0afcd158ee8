"""Two hundred iterations cost what two hundred times one costs, in memory and in time."""

import asyncio
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import LogProgress
from mappa_core.app.services import use
from mappa_core.core.records.runs import IterationFigures
from tests.e2e.conftest import MakeServices

ITERATIONS = 200
WARM = 40
"""Iterations until libraries, caches and pools have their size."""


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


class Gauge(LogProgress):
    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.resident: list[int] = []

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        if figures.phase == "train":
            self.seconds.append(seconds)
            self.resident.append(resident_bytes())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_iterations_are_flat(
    make_services: MakeServices, toy_config: TrainConfig
) -> None:
    rollout = {"iterations": ITERATIONS, "episodes_per_problem": 2}
    config = toy_config.model_copy(
        update={
            "rollout": toy_config.rollout.model_copy(update=rollout),
            "learner": toy_config.learner.model_copy(update={"keep_checkpoints": 2}),
        }
    )
    services = replace(make_services(config), progress=(gauge := Gauge()))

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    asyncio.run(body())
    assert len(gauge.seconds) == ITERATIONS
    early, late = slice(WARM, 2 * WARM), slice(-WARM, None)
    assert median(gauge.seconds[late]) < 1.25 * median(gauge.seconds[early])
    assert median(gauge.resident[late]) < median(gauge.resident[early]) + 64 * 2**20
