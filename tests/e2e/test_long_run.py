"""Two hundred iterations cost what two hundred times one costs, in memory and in time."""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from _pytest.logging import LogCaptureHandler
from scipy.stats import linregress, t

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import LogProgress
from mappa_core.app.services import use
from mappa_core.core.records.runs import IterationFigures
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.e2e.conftest import MakeServices

ITERATIONS = 200
WARM = 40
"""Iterations until libraries, caches and pools have their size."""
BLOCKS = 16
"""Of iterations, each its median: neighbours are alike, blocks hardly."""
GROWTH_BYTES = 48 * 2**10
"""Of memory in an iteration, at most: while a flow runs, Prefect keeps what became of its tasks."""


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


def slope_interval(values: Sequence[float]) -> tuple[float, float]:
    """Between what two values an iteration adds, by a line through medians of blocks: 95 %."""
    blocks = np.array_split(np.array(values[WARM:]), BLOCKS)
    length = (len(values) - WARM) / BLOCKS
    line = linregress(length * np.arange(BLOCKS), [median(block) for block in blocks])
    margin = float(t.ppf(0.975, BLOCKS - 2)) * line.stderr
    return line.slope - margin, line.slope + margin


@contextmanager
def unrecorded() -> Generator[None]:
    """Log as a run does: pytest would keep every line, and what it is about."""
    root = logging.getLogger()
    kept = [each for each in root.handlers if isinstance(each, LogCaptureHandler)]
    for each in kept:
        root.removeHandler(each)
    yield
    for each in kept:
        root.addHandler(each)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_iterations_are_flat(
    make_services: MakeServices, toy_config: TrainConfig, tmp_path: Path
) -> None:
    rollout = {"iterations": ITERATIONS, "episodes_per_problem": 2}
    config = toy_config.model_copy(
        update={
            "rollout": toy_config.rollout.model_copy(update=rollout),
            "learner": toy_config.learner.model_copy(update={"keep_checkpoints": 2}),
        }
    )
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    services = replace(
        make_services(config),
        tracker=MlflowTracker(uri, tmp_path / "artifacts"),
        registry=MlflowRegistry(uri),
        progress=(gauge := Gauge()),
    )

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    with unrecorded():
        asyncio.run(body())
    assert len(gauge.seconds) == ITERATIONS
    early, late = slice(WARM, 2 * WARM), slice(-WARM, None)
    assert median(gauge.seconds[late]) < 1.25 * median(gauge.seconds[early])
    assert slope_interval(gauge.seconds)[0] <= 0
    assert slope_interval(gauge.resident)[1] < GROWTH_BYTES
