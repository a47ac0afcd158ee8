"""`mappa bench sandbox`: what a run costs on each backend this machine has, in one go.

Bubblewrap has aims; the others are measured beside it, on the same programs in the same minutes.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

from mappa_cli.benches import bench_options
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.core.settings import Settings
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.choose import BACKENDS, choose_sandbox

LATENCY_AIM_MS, THROUGHPUT_AIM = 60.0, 40.0
AIMED = "bubblewrap"
_WARM_UP, _SINGLE, _AT_ONCE, _MANY = 5, 40, 16, 160
_PROGRAM = "print(1)"


def bench_sandbox(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Median latency of `print(1)` alone, and runs per second with 16 at once.

    Raises:
        ConfigError: There are options.
        SandboxUnavailable: Not even bubblewrap can be had here.
    """
    bench_options("sandbox", overrides)
    return asyncio.run(_compared(settings))


async def _compared(settings: Settings) -> BenchReport:
    figures: list[Figure] = []
    absent: list[str] = []
    for backend in (one.name for one in BACKENDS):
        try:
            sandbox = await choose_sandbox(
                backend,
                _AT_ONCE,
                fusion_url=settings.sandboxfusion_url,
                image=settings.sandbox_image,
            )
        except SandboxUnavailable as error:
            if backend == AIMED:
                raise
            absent.append(str(error))
            continue
        try:
            figures += await _measured(backend, sandbox)
        finally:
            await sandbox.close()
    return BenchReport(bench="sandbox", figures=tuple(figures), absent=tuple(absent))


async def _measured(backend: str, sandbox: Sandbox) -> Sequence[Figure]:
    for _ in range(_WARM_UP):
        await _once(sandbox)
    median_ms = 1000 * statistics.median([await _once(sandbox) for _ in range(_SINGLE)])
    started = time.perf_counter()
    await asyncio.gather(*(_once(sandbox) for _ in range(_MANY)))
    rate = _MANY / (time.perf_counter() - started)
    latency, at_once = f"{sandbox.tier}: print(1), median", f"{sandbox.tier}: {_AT_ONCE} at once"
    if backend == AIMED:
        return (
            aimed(latency, median_ms, "ms", at_most=LATENCY_AIM_MS),
            aimed(at_once, rate, "runs/s", at_least=THROUGHPUT_AIM),
        )
    return (
        Figure(name=latency, value=median_ms, unit="ms"),
        Figure(name=at_once, value=rate, unit="runs/s"),
    )


async def _once(sandbox: Sandbox) -> float:
    """Seconds of one run.

    Raises:
        SandboxError: It did not print what it should.
    """
    started = time.perf_counter()
    result = await sandbox.run(_PROGRAM, None, Limits())
    if result.status is not ToolStatus.OK or result.stdout != "1\n":
        raise SandboxError(f"{sandbox.tier} ended print(1) as {result.status.value}")
    return time.perf_counter() - started
