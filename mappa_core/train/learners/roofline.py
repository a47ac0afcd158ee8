"""Measures the matrix products of some work beside the fastest ones that this CPU can do."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

SQUARES = (1024, 2048, 4096)
"""Of the products that the peak is measured with; which is fastest depends on the caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The matrix products of a piece of work, those inside an attention's call apart."""

    dtype: str
    """Of the peak, and of most of them."""
    flops: float
    seconds: float
    """Of the cores inside of them, as if all of these computed one after another."""
    work_seconds: float
    """Of it in all."""
    peak: float
    """Floating-point operations per second of the fastest square product of that type."""

    @property
    def of_peak(self) -> float:
        """Give the products' speed over the peak."""
        return self.flops / self.seconds / self.peak


def measured(work: Callable[[], object], dtype: torch.dtype, *, at_once: int = 1) -> Products:
    """Do the work once, with all its threads profiled, then measure the peak.

    So many of its threads compute at once, each on its share of the cores.
    """
    everywhere = torch.profiler._ExperimentalConfig(profile_all_threads=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    with profile(
        activities=[ProfilerActivity.CPU], with_flops=True, experimental_config=everywhere
    ) as made:
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
    products = [event for event in made.key_averages() if event.flops]
    return Products(
        dtype=str(dtype).removeprefix("torch."),
        flops=float(sum(event.flops for event in products)),
        seconds=sum(event.self_cpu_time_total for event in products) / 1e6 / at_once,
        work_seconds=seconds,
        peak=max(_flops_per_second(dtype, size) for size in SQUARES),
    )


def _flops_per_second(dtype: torch.dtype, size: int) -> float:
    """Time one square product, three times after a first one; the best."""
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    seconds: list[float] = []
    for _ in range(4):
        started = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds[1:])
