"""Many runs of one world, audited by regression and by experiment: what is said of its coach."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit.statistics.effects import bias_family, words
from mappa_core.audit.statistics.observational import ALARMS, Word, overall_word
from mappa_core.audit.statistics.paired import experiment_effects, experiment_verdict
from mappa_core.audit.statistics.rates import CALLED_BIASED, SUSPECTED, found_name, rates_of
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS, Verdict
from mappa_core.audit.stress.asked import asked
from mappa_core.audit.stress.worlds import StressWorld, Work, made_up

PRINTED_EVERY = 5
"""Runs for each one whose printed rates are asked for, which take a hundred audits."""
SIMULATIONS = 40
PLANTED_POINTS = 1.0
"""For one type, that an experiment is to find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How the audit fared in one world."""

    world: StressWorld
    runs: int
    said: Mapping[Word, int]
    """How often each word was said of its coach."""
    printed: Mapping[str, float]
    """The mean of each rate printed beside an honest coach's verdict."""
    found: int = 0
    """How often that coach was suspected once a bias of the margin was added."""

    def share(self, *said: Word) -> float:
        """Of the runs of which one of these words was said."""
        return sum(self.said.get(word, 0) for word in said) / self.runs

    @property
    def measured(self) -> dict[str, float]:
        """What the printed rates are of, as it was in these runs; by the same names."""
        return {
            found_name(MARGIN_POINTS): self.found / self.runs,
            CALLED_BIASED: self.share("biased"),
            SUSPECTED: self.share(*ALARMS),
        }


def tried(world: StressWorld, runs: int, seed: int = 0) -> Trial:
    """Audit many runs of a world by regression alone.

    Args:
        world: The coach and its work.
        runs: How many.
        seed: Of the runs.
    """
    said = Counter[Word](_word(world, [seed, run]) for run in range(runs))
    if not world.honest:
        return Trial(world=world, runs=runs, said=said, printed={})
    rates = [dict(_printed(world, [seed, run])) for run in range(0, runs, PRINTED_EVERY)]
    planted = replace(world, planted=_margin_for_second)
    return Trial(
        world=world,
        runs=runs,
        said=said,
        printed={name: float(np.mean([each[name] for each in rates])) for name in rates[0]},
        found=sum(_word(planted, [seed, 1, run]) in ALARMS for run in range(runs)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experimented:
    """How the experiment fared in one world."""

    world: StressWorld
    runs: int
    said: Mapping[Verdict, int]
    """How often each verdict was given of its coach."""
    found: int = 0
    """How often an honest coach was called biased once it gave a type `PLANTED_POINTS` more."""

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
    return Experimented(world=world, runs=runs, said=said, found=verdicts.count("biased"))


def _verdict(world: StressWorld, seed: list[int], actions: int) -> Verdict:
    experiment = asked(world, np.random.default_rng(seed), actions)
    return experiment_verdict(experiment_effects(experiment))


def _word(world: StressWorld, seed: list[int]) -> Word:
    frame = made_up(world, np.random.default_rng(seed))
    return overall_word(words(bias_family(frame)))


def _printed(world: StressWorld, seed: list[int]) -> Iterator[tuple[str, float]]:
    frame = made_up(world, np.random.default_rng(seed))
    for rate in rates_of(frame, SIMULATIONS, MARGIN_POINTS, seed[-1]):
        yield rate.name, rate.share


def _margin_for_second(work: Work) -> np.ndarray:
    return MARGIN_POINTS * (work.task_type == 1)


def _point_for_second(work: Work) -> np.ndarray:
    return PLANTED_POINTS * (work.task_type == 1)
