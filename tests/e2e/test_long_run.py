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
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from scipy.stats import linregress, t

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import LogProgress
from mappa_core.app.services import Services, use
from mappa_core.core.records.runs import IterationFigures
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.e2e.conftest import MakeServices

ITERATIONS = 200
WARM = 40
"""Iterations until libraries, caches and pools have their size."""
BLOCKS = 16
"""Of iterations, each its median: neighbours are alike, blocks hardly."""
GROWTH_BYTES = 40 * 2**10
"""Of memory in an iteration, at most. Objects hardly grow in number; safetensors 0.8 leaks 64 bytes
for each tensor it reads, and Python's and C's heaps have more and more holes."""


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


class Kept(LogProgress):
    """Counts what the flow has of its tasks at each iteration's end."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[int] = []

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        context = FlowRunContext.get()
        assert context is not None
        self.results.append(len(context.run_results) + len(context.task_run_assets))


class Gauge(LogProgress):
    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.resident: list[int] = []

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        if figures.phase == "train":
            self.seconds.append(seconds)
            # A toy's tasks end faster than Prefect's server is told of them.
            EventsWorker.instance().wait_until_empty()
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


def test_a_flow_keeps_what_one_iteration_gave(
    make_services: MakeServices, toy_config: TrainConfig
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 3, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    services = replace(make_services(config), progress=(kept := Kept()))
    asyncio.run(trained(config, services))
    assert kept.results[0] > 0
    assert kept.results[2] == kept.results[1]


async def trained(config: TrainConfig, services: Services) -> None:
    await services.engine.start()
    with use(services):
        await train(config)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_iterations_are_flat(
    make_services: MakeServices, toy_config: TrainConfig, empty_database_url: str, tmp_path: Path
) -> None:
    rollout = {"iterations": ITERATIONS, "episodes_per_problem": 2}
    config = toy_config.model_copy(
        update={
            "rollout": toy_config.rollout.model_copy(update=rollout),
            "learner": toy_config.learner.model_copy(update={"keep_checkpoints": 2}),
        }
    )
    services = replace(
        make_services(config),
        tracker=MlflowTracker(empty_database_url, tmp_path / "artifacts"),
        registry=MlflowRegistry(empty_database_url),
        progress=(gauge := Gauge()),
    )
    with unrecorded():
        asyncio.run(trained(config, services))
    assert len(gauge.seconds) == ITERATIONS
    early, late = slice(WARM, 2 * WARM), slice(-WARM, None)
    assert median(gauge.seconds[late]) < 1.25 * median(gauge.seconds[early])
    assert slope_interval(gauge.seconds)[0] <= 0
    assert slope_interval(gauge.resident)[1] < GROWTH_BYTES
