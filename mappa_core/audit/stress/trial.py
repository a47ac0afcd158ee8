"""Many runs of one world, audited by regression and by experiment: what is said of its coach."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit.statistics.counting import Rate, Rates
from mappa_core.audit.statistics.effects import bias_family, words
from mappa_core.audit.statistics.experiment_rates import HONEST, experiment_rates, finds_name
from mappa_core.audit.statistics.observational import ALARMS, Word, overall_word
from mappa_core.audit.statistics.paired import experiment_effects, experiment_verdict
from mappa_core.audit.statistics.rates import CALLED_BIASED, SUSPECTED, found_name, rates_of
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS, Verdict
from mappa_core.audit.stress.asked import asked
from mappa_core.audit.stress.worlds import StressWorld, Work, made_up

PRINTED_EVERY = 5
"""Runs for each one whose printed rates are asked for, which take a hundred audits."""
SIMULATIONS = 60
PLANTED_POINTS = 1.0
"""For one type, that an experiment is to find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One rate as it was printed beside the verdicts of many runs, and as it was."""

    name: str
    runs: int
    """That were asked for it."""
    told: tuple[float, ...]
    """The shares that they gave; the others said that it cannot be known."""
    measured: float
    measured_runs: int

    @property
    def mean(self) -> float:
        """Of what was told; NaN where nothing was."""
        return float(np.mean(self.told)) if self.told else float("nan")

    @property
    def error(self) -> float:
        """Standard error of the difference between told and measured."""
        share = min(max(self.measured, 0.5 / self.measured_runs), 1 - 0.5 / self.measured_runs)
        # Each was counted in so many simulations, however alike the few that were told are.
        counted = self.mean * (1 - self.mean) / SIMULATIONS
        own = max(float(np.var(self.told)), counted) / len(self.told)
        return float(np.sqrt(share * (1 - share) / self.measured_runs + own))


def _printed_rates(
    every: list[Rates], measured: Mapping[str, float], runs: int
) -> tuple[Printed, ...]:
    """Each rate of the runs that were asked, beside what was measured in `runs`."""
    names = [rate.name for rate in every[0]]
    said = {name: [rate for each in every for rate in each if rate.name == name] for name in names}
    return tuple(
        Printed(
            name=name,
            runs=len(every),
            told=tuple(rate.share for rate in said[name] if isinstance(rate, Rate)),
            measured=measured[name],
            measured_runs=runs,
        )
        for name in names
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How the audit fared in one world."""

    world: StressWorld
    runs: int
    said: Mapping[Word, int]
    """How often each word was said of its coach."""
    printed: tuple[Printed, ...] = ()
    """The rates beside an honest coach's verdict."""
    found: int = 0
    """How often that coach was suspected once a bias of the margin was added."""

    def share(self, *said: Word) -> float:
        """Of the runs of which one of these words was said."""
        return sum(self.said.get(word, 0) for word in said) / self.runs


def tried(world: StressWorld, runs: int, seed: int = 0) -> Trial:
    """Audit many runs of a world by regression alone.

    Args:
        world: The coach and its work.
        runs: How many.
        seed: Of the runs.
    """
    said = Counter[Word](_word(world, [seed, run]) for run in range(runs))
    if not world.honest:
        return Trial(world=world, runs=runs, said=said)
    planted = replace(world, planted=_margin_for_second)
    found = sum(_word(planted, [seed, 1, run]) in ALARMS for run in range(runs))
    measured = {
        found_name(MARGIN_POINTS): found / runs,
        CALLED_BIASED: said["biased"] / runs,
        SUSPECTED: sum(said[word] for word in ALARMS) / runs,
    }
    rates = [_regression_rates(world, [seed, run]) for run in range(0, runs, PRINTED_EVERY)]
    printed = _printed_rates(rates, measured, runs)
    return Trial(world=world, runs=runs, said=said, printed=printed, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experimented:
    """How the experiment fared in one world."""

    world: StressWorld
    runs: int
    said: Mapping[Verdict, int]
    """How often each verdict was given of its coach."""
    found: int = 0
    """How often an honest coach was called biased once it gave a type `PLANTED_POINTS` more."""
    printed: tuple[Printed, ...] = ()

    def share(self, verdict: Verdict) -> float:
        """Of the runs that got this verdict."""
        return self.said.get(verdict, 0) / self.runs


def experimented(world: StressWorld, runs: int, actions: int, seed: int = 0) -> Experimented:
    """Ask the coach of many runs of a world again.

    Args:
        world: The coach and its work.
        runs: How many.
        actions: That each experiment asks about.
        seed: Of the runs.
    """
    said = Counter[Verdict](_verdict(world, [seed, run], actions) for run in range(runs))
    if not world.honest:
        return Experimented(world=world, runs=runs, said=said)
    kinder = replace(world, planted=_point_for_second)
    verdicts = [_verdict(kinder, [seed, 1, run], actions) for run in range(runs)]
    margin = replace(world, planted=_margin_for_second)
    by_margin = [_verdict(margin, [seed, 2, run], actions) for run in range(runs)]
    measured = {
        HONEST: said["biased"] / runs,
        finds_name(MARGIN_POINTS): by_margin.count("biased") / runs,
    }
    asked_for = range(0, runs, PRINTED_EVERY)
    rates = [_experiment_rates(world, [seed, run], actions) for run in asked_for]
    return Experimented(
        world=world,
        runs=runs,
        said=said,
        found=verdicts.count("biased"),
        printed=_printed_rates(rates, measured, runs),
    )


def _experiment_rates(world: StressWorld, seed: list[int], actions: int) -> Rates:
    experiment = asked(world, np.random.default_rng(seed), actions)
    return experiment_rates(experiment, SIMULATIONS, MARGIN_POINTS, seed[-1])


def _verdict(world: StressWorld, seed: list[int], actions: int) -> Verdict:
    experiment = asked(world, np.random.default_rng(seed), actions)
    return experiment_verdict(experiment_effects(experiment))


def _word(world: StressWorld, seed: list[int]) -> Word:
    frame = made_up(world, np.random.default_rng(seed))
    return overall_word(words(bias_family(frame)))


def _regression_rates(world: StressWorld, seed: list[int]) -> Rates:
    frame = made_up(world, np.random.default_rng(seed))
    return rates_of(frame, SIMULATIONS, MARGIN_POINTS, seed[-1])


def _margin_for_second(work: Work) -> np.ndarray:
    return MARGIN_POINTS * (work.task_type == 1)


def _point_for_second(work: Work) -> np.ndarray:
    return PLANTED_POINTS * (work.task_type == 1)
