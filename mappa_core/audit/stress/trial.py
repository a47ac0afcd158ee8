"""Many runs of one world, audited: what is said of its coach, and what was printed beside it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit.statistics.effects import bias_family, words
from mappa_core.audit.statistics.observational import ALARMS, Word, overall_word
from mappa_core.audit.statistics.rates import rates_of
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.audit.stress.worlds import StressWorld, Work, made_up

PRINTED_EVERY = 5
"""Runs for each one whose printed rates are asked for, which take a hundred audits."""
SIMULATIONS = 40


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


def _word(world: StressWorld, seed: list[int]) -> Word:
    frame = made_up(world, np.random.default_rng(seed))
    return overall_word(words(bias_family(frame)))


def _printed(world: StressWorld, seed: list[int]) -> Iterator[tuple[str, float]]:
    frame = made_up(world, np.random.default_rng(seed))
    for rate in rates_of(frame, SIMULATIONS, MARGIN_POINTS, seed[-1]):
        yield rate.name, rate.share


def _margin_for_second(work: Work) -> np.ndarray:
    return MARGIN_POINTS * (work.task_type == 1)
