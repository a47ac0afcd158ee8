"""Made-up coaches whose bias sets in at a known iteration: does the set of onsets hold it?

1.5 points for one of two types, from iteration 1, 3, 5 or 8 of 8 on, with 6 problems of each type
in each. An experiment says the size, up to its error: what heaping and the scale leave of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics.onset import Onset, gaps, onset
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.stress.worlds import Ease, Sizes, StressWorld, Work, made_up

STARTS = (1, 3, 5, 8)
POINTS, SHOWN, ERROR = 1.5, 1.4, 0.15
_SIZES = Sizes(problems=(48, 48), episodes=(2, 4), iterations=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatingTrial:
    """What was said of the onset in many runs of one world."""

    world: StressWorld
    runs: int
    held: int
    """Runs whose set holds the right iteration."""
    width: float
    """Iterations in a set, on average."""


def dating_worlds() -> Iterator[StressWorld]:
    """Yield work on which dating is hard in another way each; `dated` plants the bias."""
    yield StressWorld(name="alike", sizes=_SIZES)
    yield StressWorld(name="harder by 1.5", sizes=_SIZES, ease=Ease(types=(0.0, -1.5)))
    yield StressWorld(name="ceiling", sizes=_SIZES, ease=Ease(types=(3.2, 2.2)))


def dating_trial(world: StressWorld, runs: int, seed: int = 7) -> DatingTrial:
    """Date the bias of many runs of a world, which sets in at each of `STARTS` in turn.

    Args:
        world: The work.
        runs: How many.
        seed: Of the runs.
    """
    starts = [STARTS[run % len(STARTS)] for run in range(runs)]
    found = [
        dated(world, start, np.random.default_rng([seed, run])) for run, start in enumerate(starts)
    ]
    return DatingTrial(
        world=world,
        runs=runs,
        held=sum(start in each.could_be for start, each in zip(starts, found, strict=True)),
        width=sum(len(each.could_be) for each in found) / runs,
    )


def dated(world: StressWorld, start: int, rng: np.random.Generator) -> Onset:
    """The onset that is said of one run whose bias sets in at `start`."""

    def planted(work: Work) -> Floats:
        return POINTS * ((work.task_type == 1) & (work.iteration >= start))

    size = Estimate(
        value=float(rng.normal(SHOWN, ERROR)),
        standard_error=ERROR,
        degrees_of_freedom=99.0,
        p_value=0.0,
    )
    found = onset(gaps(made_up(replace(world, planted=planted), rng), 1), size)
    assert found is not None
    return found
