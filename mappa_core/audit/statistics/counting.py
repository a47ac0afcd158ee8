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
        return clopper_pearson(self.hits, self.runs - self.hits, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknowable:
    """A rate that no simulation gives, and why."""

    name: str
    reason: str


Rates: TypeAlias = Sequence[Rate | Unknowable]


def clopper_pearson(hits: float, misses: float, level: float) -> tuple[float, float]:
    """The exact interval of a share (Clopper & Pearson 1934).

    Args:
        hits: Whole numbers where trials are counted, any above 0 where they are effective ones.
        misses: Likewise.
        level: Of the two-sided interval, in (0, 1).
    """
    from scipy import special  # the command line knows rates before any is counted

    tail = (1 - level) / 2
    low = float(special.betaincinv(hits, misses + 1, tail)) if hits > 0 else 0.0
    high = float(special.betaincinv(hits + 1, misses, 1 - tail)) if misses > 0 else 1.0
    return low, high


def counted_rate(name: str, hits: int, runs: int, promise: Promise) -> Rate:
    """A rate beside its promise: `level` (at most 5 %) or `power` (at least 90 %)."""
    rate = Rate(name=name, hits=hits, runs=runs, promise=promise, kept=True)
    low, high = rate.interval()
    # A false-alarm rate is kept where 5 % is in its interval or above it; a power where 90 % is
    # in its interval or below it.
    kept = low <= LEVEL if promise == "level" else high >= POWER
    promised = "at most 5 %" if promise == "level" else "at least 90 %"
    return replace(rate, promise=promised, kept=kept)
