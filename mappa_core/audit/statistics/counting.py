"""Rates that were counted in simulation, each with its exact interval, and those that cannot be."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Promise: TypeAlias = Literal["level", "power"]
LEVEL = 0.05
POWER = 0.9
STEADY = 0.03
"""By which a rate may change with what is not known and still be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How often something happened in simulation, and whether that is what was promised."""

    name: str
    hits: int
    runs: int
    promise: str
    kept: bool

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return self.hits / self.runs

    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the rate (Clopper & Pearson 1934)."""
        # The command line knows rates before any is counted, and scipy takes long to import.
        from scipy import stats

        found = stats.binomtest(self.hits, self.runs).proportion_ci(0.95)
        return float(found.low), float(found.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknowable:
    """A rate that no simulation gives, and why."""

    name: str
    reason: str


Rates: TypeAlias = Sequence[Rate | Unknowable]


def counted_rate(name: str, hits: int, runs: int, promise: Promise) -> Rate:
    """A rate beside its promise: `level` (at most 5 %) or `power` (at least 90 %)."""
    rate = Rate(name=name, hits=hits, runs=runs, promise=promise, kept=True)
    low, high = rate.interval()
    # A false-alarm rate is kept where 5 % is in its interval or above it; a power where 90 % is
    # in its interval or below it.
    kept = low <= LEVEL if promise == "level" else high >= POWER
    promised = "at most 5 %" if promise == "level" else "at least 90 %"
    return replace(rate, promise=promised, kept=kept)
