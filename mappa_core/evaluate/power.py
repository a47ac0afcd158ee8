"""Could a planned comparison show a gain, if there is one? Answered by playing it out.

Problems differ: their success rates before are drawn from a Beta distribution. A gain moves all of
them by one amount on the logit scale. Each simulated comparison is judged as a real one would be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from mappa_core.evaluate.comparison import compare
from mappa_core.evaluate.evaluation import Evaluation

CONCENTRATION = 1.0
"""a + b of the Beta distribution: competition problems are mostly solved always or never."""
WIDEST_SHIFT = 40.0
ENOUGH = 0.8
"""The chance that a plan aims at."""
_SURE = 0.02
"""Benchmarks that a team never solves, or always, are taken to be this far from it."""
_SAMPLES = (1, 2, 4, 8, 16, 32)
_TIMES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPlan:
    """What it takes to find a gain on one benchmark."""

    gain: float
    """Of the mean success rate, in [0, 1]."""
    problems: int
    samples: int
    """Episodes of each problem on each side."""
    chance: float
    """That these find the gain."""
    samples_needed: int | None
    """The fewest of 1, 2, 4, ... 32 that find it with the chance `ENOUGH`; None where 32 do not."""
    problems_needed: int | None
    """The fewest of 1, 2, 4, 8 and 16 times the problems, with as many samples; None: not 16."""


def plan(
    *, problems: int, samples: int, before: float, gain: float, simulations: int = 200
) -> PowerPlan:
    """Plan how many problems and episodes find a gain on a benchmark.

    Args:
        problems: There are now.
        samples: Episodes of each on each side.
        before: Mean success rate before, in [0, 1].
        gain: To be found, in (0, 1); out of reach where it would lead beyond 1.
        simulations: Comparisons played out for each chance.
    """
    rate = min(max(before, _SURE), 1 - _SURE)

    def chance(problems: int, samples: int) -> float:
        if before + gain > 1:
            return 0.0
        return power(
            problems=problems, samples=samples, before=rate, gain=gain, simulations=simulations
        )

    return PowerPlan(
        gain=gain,
        problems=problems,
        samples=samples,
        chance=chance(problems, samples),
        samples_needed=_fewest(_SAMPLES, lambda number: chance(problems, number)),
        problems_needed=_fewest(
            [number * problems for number in _TIMES], lambda number: chance(number, samples)
        ),
    )


def plans_of(found: Evaluation, gain: float, *, simulations: int = 200) -> Mapping[str, PowerPlan]:
    """Plan for all held-out problems of an evaluation, and for each contest by itself."""
    samples = found.after.episodes // found.after.problems
    measured = {"all": (found.success, samples)} | {
        name: (each.success, each.samples) for name, each in found.strata.get("contest", {}).items()
    }
    return {
        name: plan(
            problems=each.problems,
            samples=samples,
            before=each.before,
            gain=gain,
            simulations=simulations,
        )
        for name, (each, samples) in measured.items()
    }


def _fewest(numbers: Sequence[int], chance: Callable[[int], float]) -> int | None:
    return next((number for number in numbers if chance(number) >= ENOUGH), None)


def power(
    *,
    problems: int,
    samples: int,
    before: float,
    gain: float,
    simulations: int = 200,
    resamples: int = 400,
    seed: int = 0,
) -> float:
    """Share of simulated comparisons with the verdict `better`.

    Args:
        problems: Held out, each played before and after.
        samples: Episodes per problem on each side.
        before: Mean success rate before, in (0, 1).
        gain: True difference of the mean success rates; 0 gives the rate of false alarms.
        simulations: Comparisons played out.
        resamples: Bootstrap resamples of each.
        seed: Of the simulation.
    """
    generator = np.random.default_rng(seed)
    names = [UUID(int=number) for number in range(problems)]
    better = 0
    for number in range(simulations):
        rates = generator.beta(
            CONCENTRATION * before, CONCENTRATION * (1 - before), size=problems
        ).clip(1e-6, 1 - 1e-6)
        sides = [
            generator.random((problems, samples)) < chance[:, None]
            for chance in (rates, _shifted(rates, gain))
        ]
        earlier, later = (dict(zip(names, side.tolist(), strict=True)) for side in sides)
        verdict = compare(earlier, later, resamples=resamples, seed=number).verdict
        better += verdict == "better"
    return better / simulations


def _shifted(rates: np.ndarray, gain: float) -> np.ndarray:
    """The rates, all moved on the logit scale so that their mean rises by `gain`."""
    if gain <= 0:
        return rates
    from scipy import optimize, special  # half a second, for few commands

    logits, target = special.logit(rates), min(float(rates.mean()) + gain, 1 - 1e-6)

    def above(shift: float) -> float:
        return float(special.expit(logits + shift).mean()) - target

    return special.expit(logits + optimize.brentq(above, 0, WIDEST_SHIFT, xtol=1e-13))
