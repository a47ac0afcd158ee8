"""Two hundred iterations cost what two hundred times one costs, in memory and in time."""

import asyncio
import gc
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from _pytest.logging import LogCaptureHandler
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from scipy.stats import linregress, sem, t, theilslopes

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import LogProgress
from mappa_core.app.services import Services, use
from mappa_core.core.records.runs import IterationFigures
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.e2e.conftest import MakeServices

WARM = 100
"""Iterations until libraries, caches and pools have their size."""
ITERATIONS = WARM + 200
BLOCKS = 16
"""Of iterations, each its median: neighbours are alike, blocks hardly."""
GROWTH_BYTES = 5 * 2**10
"""Of memory in an iteration, at most: caches that are not full yet add 2 to 3 KiB.

An interval that noise widens is not enough. Threads with a heap each made it 7 KiB and more.
"""


def resident_bytes() -> int:
    """What the process has of memory by itself: no pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def piece_of_work() -> float:
    """How many seconds a fixed piece of work takes now: machines are not always equally fast."""

    def once() -> float:
        started = time.perf_counter()
        kept = {}
        for number in range(60_000):
            kept[number % 50_021] = (number, str(number & 15))
        return time.perf_counter() - started

    return median(once() for _ in range(5))


def results_kept() -> int:
    """How many results of its tasks the flow has."""
    context = FlowRunContext.get()
    assert context is not None
    return len(context.run_results) + len(context.task_run_assets)


class Kept(LogProgress):
    """Counts what the flow has of its tasks at the end of updates, and of iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.within: list[int] = []
        self.after: list[int] = []

    def on_update_ended(self, agent: str, iteration: int, metrics: Mapping[str, float]) -> None:
        self.within.append(results_kept())

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        self.after.append(results_kept())


class Gauge(LogProgress):
    """Notes what each iteration took, in pieces of work, and the memory there was at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[float] = []
        self.resident: list[int] = []

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        if figures.phase == "train":
            # A toy's tasks end faster than Prefect's server is told of them.
            EventsWorker.instance().wait_until_empty()
            self.work.append(seconds / piece_of_work())
            self.resident.append(resident_bytes())


def medians(values: Sequence[float]) -> tuple[list[float], float]:
    """The median of each block of iterations, and how many iterations a block has."""
    blocks = np.array_split(np.array(values[WARM:]), BLOCKS)
    return [median(block) for block in blocks], (len(values) - WARM) / BLOCKS


def slope_interval(values: Sequence[float]) -> tuple[float, float]:
    """Between what two values an iteration adds, by a line through the blocks: 99 %."""
    blocks, length = medians(values)
    line = linregress(length * np.arange(BLOCKS), blocks)
    margin = float(t.ppf(0.995, BLOCKS - 2)) * line.stderr
    return line.slope - margin, line.slope + margin


def growth_interval(values: Sequence[float]) -> tuple[float, float]:
    """Between what two values an iteration adds, by the mean step from block to block: 99 %.

    Memory that was taken stays taken, so that its noise adds up, and of such values the interval of
    a line is too narrow (Granger and Newbold, Spurious regressions in econometrics, 1974).
    """
    blocks, length = medians(values)
    steps = np.diff(blocks) / length
    margin = float(t.ppf(0.995, BLOCKS - 2)) * sem(steps)
    return steps.mean() - margin, steps.mean() + margin


@contextmanager
def as_a_run() -> Generator[None]:
    """Log and collect garbage as a run does: pytest would keep every line, and what it is about."""
    root = logging.getLogger()
    kept = [each for each in root.handlers if isinstance(each, LogCaptureHandler)]
    for each in kept:
        root.removeHandler(each)
    gc.freeze()
    yield
    gc.unfreeze()
    for each in kept:
        root.addHandler(each)


def test_a_flow_forgets_what_an_iteration_gave(
    make_services: MakeServices, toy_config: TrainConfig
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 3, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    services = replace(make_services(config), progress=(kept := Kept()))
    asyncio.run(trained(config, services))
    assert min(kept.within) > 0
    assert kept.after == [0, 0, 0]


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
    with as_a_run():
        asyncio.run(trained(config, services))
    assert len(gauge.work) == ITERATIONS
    early, late = slice(WARM, WARM + 40), slice(-40, None)
    assert median(gauge.work[late]) < 1.25 * median(gauge.work[early])
    assert slope_interval(gauge.work)[0] <= 0
    assert growth_interval(gauge.resident)[0] <= 0
    blocks, length = medians(gauge.resident)
    # A hash table of Python's that doubles once is a step, and no slope.
    assert theilslopes(blocks, length * np.arange(BLOCKS)).slope < GROWTH_BYTES
