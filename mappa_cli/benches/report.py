"""What a bench reports: figures, each beside its aim."""

import os
import platform
from dataclasses import dataclass, field


def machine() -> str:
    """The machine in words."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number beside its aim."""

    name: str
    value: float
    unit: str
    aim: str | None = None
    met: bool | None = None
    error: float | None = None
    """Standard error of the value, where it is an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What one bench measured; `--json` prints it as it is."""

    bench: str
    machine: str = field(default_factory=machine)
    figures: tuple[Figure, ...]
    absent: tuple[str, ...] = ()
    """What could not be measured here, and why."""


def aimed(
    name: str,
    value: float,
    unit: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    """A figure beside its aim."""
    met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    aim = f">= {at_least:g}" if at_most is None else f"<= {at_most:g}"
    return Figure(name=name, value=value, unit=unit, aim=aim, met=met)
