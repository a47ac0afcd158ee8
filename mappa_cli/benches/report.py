"""What a bench says: figures, each beside its aim."""

import os
import platform
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number beside its aim."""

    name: str
    value: float
    unit: str
    aim: str | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What one bench measured."""

    bench: str
    machine: str
    figures: tuple[Figure, ...]
    absent: tuple[str, ...] = ()
    """What could not be measured here, and why."""

    def as_json(self) -> dict[str, str | list[str] | list[dict[str, str | float | bool | None]]]:
        """The object that `--json` prints."""
        return {
            "bench": self.bench,
            "machine": self.machine,
            "figures": [
                {
                    "name": figure.name,
                    "value": figure.value,
                    "unit": figure.unit,
                    "aim": figure.aim,
                    "met": figure.met,
                }
                for figure in self.figures
            ],
            "absent": list(self.absent),
        }


def machine() -> str:
    """The machine in words."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


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
