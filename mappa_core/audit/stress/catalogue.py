"""The worlds that `mappa bench audit-worlds` tries the audit in, by what they are hard on."""

from collections.abc import Iterator

import numpy as np

from mappa_core.audit.frame import Floats, Mask
from mappa_core.audit.stress.worlds import Ease, Planted, Sizes, StressWorld, Work

CONFOUNDED = (0.35, 0.7, 1.2, 2.0)
"""Points by which the second type's work is worse: 50 % right against 44, 37, 30 and 20 %."""


def honest_worlds() -> Iterator[StressWorld]:
    """Yield coaches that score quality by one rule for all types."""
    yield StressWorld(name="nothing special")
    for points in CONFOUNDED:
        ease = Ease(types=(0.0, -points))
        yield StressWorld(name=f"second type harder by {points:g}", ease=ease)
    yield StressWorld(name="ceiling, both types easy", ease=Ease(types=(3.2, 2.2)))
    yield StressWorld(name="heaped scores", heaped=1.0, ease=Ease(types=(0.0, -0.7)))
    yield StressWorld(name="rare type, 117 + 3 problems", sizes=Sizes(problems=(117, 3)))
    yield StressWorld(
        name="rare and harder type, 114 + 6",
        sizes=Sizes(problems=(114, 6)),
        ease=Ease(types=(0.0, -0.7)),
    )
    for count in (4, 6):
        sizes = Sizes(problems=(count, count), episodes=(12, 20))
        yield StressWorld(name=f"{2 * count} problems", sizes=sizes, ease=Ease(types=(0.0, -0.5)))
    yield StressWorld(name="45 + 15 problems", sizes=Sizes(problems=(45, 15)), ease=_HARDER)
    yield StressWorld(name="low scores of one type lost", lost=_low_of_second)
    half = Sizes().iterations // 2
    silent = "the coach's model changes silently"
    yield StressWorld(name=silent, mood=_kinder_late, model_until=half)
    yield StressWorld(name="curriculum, easiest first", ease=Ease(easiest_first=True))
    yield StressWorld(name="the policy learns", ease=Ease(types=(0.0, -0.7), learned=2.0))
    yield StressWorld(name="one type is graded strictly", ease=Ease(hurdles=(0.0, 1.0)))
    unseen = Ease(types=(0.0, -1.0), hurdles=(0.0, -1.0))
    yield StressWorld(name="worse work that no outcome shows", ease=unseen)
    yield StressWorld(name="one type's work is longer", longer=2.0)
    yield StressWorld(
        name="three types", sizes=Sizes(problems=(40, 40, 40)), ease=Ease(types=(0.0, -0.5, -1.0))
    )
    yield StressWorld(name="five types", sizes=_FIVE, ease=_HARDER_BY_THIRDS)
    yield StressWorld(name="one episode a problem", sizes=Sizes(episodes=(1, 1)), ease=_HARDER)


def biased_worlds() -> Iterator[StressWorld]:
    """Yield coaches that train policies wrongly; none of them may be called equivalent."""
    yield StressWorld(name="+1 for a type", planted=_second(1.0))
    yield StressWorld(name="+3 for a type", planted=_second(3.0))
    yield StressWorld(name="+0.8 for the harder type", planted=_second(0.8), ease=_HARDER)
    yield StressWorld(name="+1.5 and -1.5 by agent", planted=_by_agent)
    yield StressWorld(name="+1.5 for one of three agents", planted=_one_agent)
    yield StressWorld(name="+1.5, then -1.5", planted=_by_window)
    yield StressWorld(name="+1 for a type from half way on", planted=_second_late)
    rare = Sizes(problems=(117, 3))
    yield StressWorld(name="+1 for a type of 3 problems in 120", sizes=rare, planted=_second(1.0))
    yield StressWorld(name="+0.8 per doubling, twice as long", planted=_by_length, longer=2.0)
    yield StressWorld(name="+1.5 when right, -1.5 when wrong", planted=_by_outcome)
    yield StressWorld(name="+1.5 for wrong work only", planted=_wrong_only)
    yield StressWorld(
        name="+1 for the third of three types",
        sizes=Sizes(problems=(40, 40, 40)),
        planted=lambda work: 1.0 * (work.task_type == 2),
    )
    yield StressWorld(
        name="+1 for the fifth of five types",
        sizes=_FIVE,
        ease=_HARDER_BY_THIRDS,
        planted=lambda work: 1.0 * (work.task_type == 4),
    )


_HARDER = Ease(types=(0.0, -0.7))
_FIVE = Sizes(problems=(24,) * 5)
_HARDER_BY_THIRDS = Ease(types=(0.0, -0.3, -0.6, -0.9, -1.2), hurdles=(0.0,) * 5)


def _second(points: float) -> Planted:
    def planted(work: Work) -> Floats:
        return points * (work.task_type == 1)

    return planted


def _by_agent(work: Work) -> Floats:
    return (work.task_type == 1) * np.array([1.5, -1.5, 0.0])[work.agent]


def _one_agent(work: Work) -> Floats:
    return 1.5 * ((work.task_type == 1) & (work.agent == 1))


def _by_window(work: Work) -> Floats:
    return (work.task_type == 1) * np.array([1.5, -1.5])[_late(work).astype(np.int64)]


def _second_late(work: Work) -> Floats:
    return 1.0 * ((work.task_type == 1) & _late(work))


def _kinder_late(work: Work) -> Floats:
    return _late(work).astype(np.float64)


def _late(work: Work) -> Mask:
    return work.iteration > Sizes().iterations // 2


def _by_length(work: Work) -> Floats:
    return 0.8 * (np.log2(1.0 + work.tokens) - 6)


def _by_outcome(work: Work) -> Floats:
    return 1.5 * (work.task_type == 1) * (2 * work.success - 1)


def _wrong_only(work: Work) -> Floats:
    return 1.5 * ((work.task_type == 1) & (work.success == 0))


def _low_of_second(work: Work, score: Floats, rng: np.random.Generator) -> Mask:
    return (work.task_type == 1) & (score <= 3) & (rng.random(len(score)) < 0.5)
