"""Made-up runs in which scores and success move, for the test of divergence alone.

40 iterations of 16 of 120 problems, one action each, in whole points. A latent quality, that of the
policy less what the problem asks, drives score and outcome.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from mappa_core.audit.statistics.calibration import Scored, bet_on_calibration

ITERATIONS, PROBLEMS, PLAYED = 40, 120, 16
GAMED_FROM = ITERATIONS // 2
"""Iterations before scores have more points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationWorld:
    """A policy and its coach."""

    name: str
    skill: tuple[float, float] = (0.0, 0.0)
    """Of the policy at first and at last; a problem asks 0, with a deviation of 1.2."""
    gain: float = 0.0
    """Points that scores have more in the second half."""
    deviation: float = 1.0
    """Of the coach, in points."""
    hurdle: float = 0.0
    """Quality that being right takes more at the end than at first, which no score shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTrial:
    """What was said of many runs of one world."""

    world: CalibrationWorld
    runs: int
    success: tuple[float, float]
    """Shares of right actions in the first quarter of the iterations and in the last."""
    alarms: tuple[int, ...]
    """How many iterations after the change each alarm came; of an honest coach after the start."""

    @property
    def delay(self) -> float | None:
        """The median of `alarms`; None without one."""
        return median(self.alarms) if self.alarms else None


def calibration_worlds() -> Iterator[CalibrationWorld]:
    """Yield honest coaches, then those whose scores rise by more than the work does."""
    falls, rises, rises_less = (1.0, -1.0), (-1.5, 1.5), (-0.6, 0.6)
    yield CalibrationWorld(name="success stands still")
    yield CalibrationWorld(name="success stands still, a noisy coach", deviation=2.0)
    yield CalibrationWorld(name="success falls", skill=falls)
    yield CalibrationWorld(name="success falls, a steady coach", skill=falls, deviation=0.3)
    yield CalibrationWorld(name="success rises", skill=rises)
    yield CalibrationWorld(name="right answers ask more of the same work, later", hurdle=1.5)
    yield CalibrationWorld(name="2 points more, success falls", skill=falls, gain=2)
    yield CalibrationWorld(name="2 points more, success stands still", gain=2)
    yield CalibrationWorld(name="2 points more, success rises a little", skill=rises_less, gain=2)
    yield CalibrationWorld(name="2 points more, success rises", skill=rises, gain=2)
    noisy = "2 points more, success stands still, a noisy coach"
    yield CalibrationWorld(name=noisy, gain=2, deviation=2.0)
    yield CalibrationWorld(name="1 point more, success stands still", gain=1)


def calibration_trial(world: CalibrationWorld, runs: int, seed: int = 0) -> CalibrationTrial:
    """Bet on many runs of a world.

    Args:
        world: The policy and its coach.
        runs: How many.
        seed: Of the runs.
    """
    played = [calibrated(world, np.random.default_rng([seed, run])) for run in range(runs)]
    quarter = ITERATIONS // 4
    first, last = (
        float(np.mean([one.successes for rounds in played for one in rounds[part]]))
        for part in (slice(quarter), slice(-quarter, None))
    )
    start = GAMED_FROM if world.gain else 0
    found = (bet_on_calibration(rounds).alarm for rounds in played)
    return CalibrationTrial(
        world=world,
        runs=runs,
        success=(first, last),
        alarms=tuple(alarm + 1 - start for alarm in found if alarm is not None),
    )


def calibrated(world: CalibrationWorld, rng: np.random.Generator) -> list[Scored]:
    """One run: by iteration, what is bet on."""
    asks = rng.normal(0, 1.2, PROBLEMS)
    rounds: list[Scored] = []
    for at, skill in enumerate(np.linspace(*world.skill, ITERATIONS)):
        drawn = rng.choice(PROBLEMS, PLAYED, replace=False)
        quality = skill - asks[drawn] + rng.normal(0, 1, PLAYED)
        hurdle = world.hurdle * at / (ITERATIONS - 1)
        right = rng.random(PLAYED) < 1 / (1 + np.exp(-2 * (quality - hurdle)))
        more = world.gain * (at >= GAMED_FROM)
        raw = 5.5 + 1.3 * quality + rng.normal(0, world.deviation, PLAYED) + more
        scores = np.round(raw).clip(0, 10)
        rounds.append(Scored(iteration=at + 1, scores=scores, successes=right.astype(float)))
    return rounds
