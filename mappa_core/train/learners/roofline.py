"""Measures the matrix products of some work beside the fastest ones that this CPU can do."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple, cast

import torch
from torch.profiler import ProfilerActivity, profile

SQUARES = (1024, 2048, 4096)
"""Of the products that the peak is measured with; which is fastest depends on the caches."""

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm")
"""What multiplies two matrices or stacks of them; the last two tensors that it is given."""
_TYPES = {"float": "float32", "c10::BFloat16": "bfloat16"}
"""The profiler's names, and torch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Floating-point operations per second of this CPU's fastest products, in one type."""

    kept_up: float
    """Of the fastest squares, one after another."""
    best: float
    """Of the fastest one by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The matrix products of a piece of work, those inside an attention's call apart."""

    flops: Mapping[str, float]
    """By the type that they are of."""
    seconds: float
    """Of the cores inside of them, as if all of these computed one after another."""
    work_seconds: float
    """Of it in all."""
    peaks: Mapping[str, Peak]
    """Of each of these types, measured for as long as the products took."""

    @property
    def least_seconds(self) -> float:
        """Give the time that the products would take at what their types' peaks keep up."""
        return sum(flops / self.peaks[dtype].kept_up for dtype, flops in self.flops.items())


class _Product(NamedTuple):
    dtype: str
    flops: int
    seconds: float


def measured(work: Callable[[], object], *, at_once: int = 1) -> Products:
    """Do the work once, with all its threads profiled, then measure the peaks.

    So many of its threads compute at once, each on its share of the cores.
    """
    everywhere = torch.profiler._ExperimentalConfig(profile_all_threads=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=everywhere
    ) as made:
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
    flops: Counter[str] = Counter()
    products = tuple(_products(made))
    for product in products:
        flops[product.dtype] += product.flops
    inside = sum(product.seconds for product in products) / at_once
    return Products(
        flops=dict(flops),
        seconds=inside,
        work_seconds=seconds,
        peaks={dtype: peak(getattr(torch, dtype), inside) for dtype in flops},
    )


def _products(made: profile) -> Iterator[_Product]:
    """List what was profiled, each product with the type that its matrices are of."""
    for event in cast(Any, made.profiler).kineto_results.events():
        if event.name() in _PRODUCTS:
            (left, dtype), (right, _) = [
                each for each in zip(event.shapes(), event.dtypes(), strict=True) if each[0]
            ][-2:]
            flops = 2 * torch.Size(left).numel() * right[-1]
            yield _Product(_TYPES[dtype], flops, event.duration_ns() / 1e9)


def peak(dtype: torch.dtype, seconds: float) -> Peak:
    """Multiply squares of each size in turn, for so long in all; the fastest size counts.

    Where others share a host, its cores' speed moves by the second. The work's products are an
    average over that, and so is what they are compared with.
    """
    squares = {size: torch.randn(size, size).to(dtype) for size in SQUARES}
    taken: dict[int, list[float]] = {size: [] for size in SQUARES}
    for square in squares.values():
        torch.mm(square, square)
    started = time.perf_counter()
    while not taken[SQUARES[0]] or time.perf_counter() - started < seconds:
        for size, square in squares.items():
            before = time.perf_counter()
            torch.mm(square, square)
            taken[size].append(time.perf_counter() - before)
    return Peak(
        kept_up=max(2 * size**3 / mean(times) for size, times in taken.items()),
        best=max(2 * size**3 / min(times) for size, times in taken.items()),
    )
