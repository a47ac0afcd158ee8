"""Since when: by hand, and how often the set of iterations holds the right one."""

import numpy as np
import pytest

from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.onset import Gaps, gaps, onset
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.stress.dating import dating_trial, dating_worlds
from mappa_core.audit.stress.worlds import Sizes, StressWorld, made_up
from tests.unit.audit.frames import make_frame

NAN = float("nan")


def some_gaps(points: list[float], variance: float) -> Gaps:
    return Gaps(
        iterations=np.arange(1, len(points) + 1),
        points=np.array(points),
        variances=np.full(len(points), variance),
    )


def of_size(points: float, error: float = 0.1) -> Estimate:
    return Estimate(value=points, standard_error=error, degrees_of_freedom=99.0, p_value=0.0)


def test_onset_by_hand() -> None:
    found = onset(some_gaps([0, 0, 0, 1, 1, 1], 0.01))
    assert found is not None
    assert (found.iteration, found.could_be) == (4, (4,))
    assert found.size == pytest.approx(1.0)
    # Starting at 3 instead: size 3/4, and (3 * 1/16 + 9/16) / 0.5 = 1.5 in the log-likelihood.
    unsure = onset(some_gaps([0, 0, 0, 1, 1, 1], 0.5))
    assert unsure is not None
    assert unsure.earliest <= 3


def test_the_set_may_have_a_gap() -> None:
    """One iteration is out of line: the onset is before it or after it, and not at it."""
    found = onset(some_gaps([0, 0, 1, 0, 1, 1], 0.1), of_size(1.0))
    assert found is not None
    assert found.could_be == (3, 5)
    assert (found.earliest, found.latest) == (3, 5)


def test_with_a_known_size_a_level_is_no_bias() -> None:
    """The gap is 2 from the start, and rises by the experiment's point at iteration 4."""
    known = onset(some_gaps([2.0, 2.0, 2.0, 3.0, 3.0, 3.0], 0.1), of_size(1.0))
    assert known is not None
    assert (known.iteration, known.could_be) == (4, (4,))


def test_without_a_step_the_bias_was_there_from_the_start() -> None:
    found = onset(some_gaps([1.5] * 6, 0.1), of_size(1.5))
    assert found is not None
    assert (found.iteration, found.latest) == (1, 1)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("start", "size"), [(1, 1.0), (7, 0.5), (7, 1.0), (7, 2.0), (12, 1.0)])
def test_the_confidence_set_covers_and_is_no_wider_than_it_must_be(
    start: int, size: float, known: bool
) -> None:
    rng, hits, runs = np.random.default_rng(0), 0, 200
    for _ in range(runs):
        points = size * (np.arange(1, 15) >= start) + rng.normal(0, 0.5, 14)
        said = of_size(size + rng.normal(0, 0.2), 0.2) if known else None
        found = onset(some_gaps(list(points), 0.25), said)
        assert found is not None
        hits += start in found.could_be
    # Sets of iterations: a step that no limit could miss is held by all of them.
    assert hits >= 0.92 * runs
    if size < 2:
        assert hits <= 0.99 * runs


def test_gaps_by_hand() -> None:
    frame = make_frame([4, 6, 8, 8.2], task_type=["a", "a", "b", "b"], problem=["1", "2", "3", "4"])
    found = gaps(frame, 1)
    assert found.points == pytest.approx([3.1])
    # Variances of two means of two: 2 / 2 and 0.02 / 2.
    assert found.variances == pytest.approx([1.01])


def test_a_harder_type_has_no_gap_before_its_bias() -> None:
    """The second type is harder by 1.5; its coach gives it 1.5 more from iteration 6 of 10 on."""
    points = np.mean([gaps(harder(seed), 1).points for seed in range(10)], axis=0)
    assert points[:5].mean() == pytest.approx(0, abs=0.3)
    assert points[5:].mean() == pytest.approx(1.5, abs=0.3)


def test_the_errors_said_of_gaps_are_those_seen() -> None:
    """Of the later half against the earlier one, where types are alike: 1.3 times as much variance
    was said, as a skill that is expected too high also makes outcomes less of a surprise."""
    sizes = Sizes(problems=(48, 48), episodes=(2, 4), iterations=8)
    world = StressWorld(name="nothing special, 8 iterations", sizes=sizes)
    found = [gaps(made_up(world, np.random.default_rng([9, run])), 1) for run in range(80)]
    later = np.repeat([-0.25, 0.25], 4)
    seen = np.var([each.points @ later for each in found])
    said = np.mean([later @ each.covariance @ later for each in found])
    assert 0.8 < said / seen < 1.15


def harder(seed: int) -> Frame:
    """Eight problems of each type in each of ten iterations, four episodes of each."""
    rng = np.random.default_rng(seed)
    kind, iteration = np.tile(np.repeat([0, 1], 8), 10), np.repeat(np.arange(1, 11), 16)
    ease = rng.normal(0.5, 1, 160) - 1.5 * kind
    problem = np.repeat(np.arange(160), 4)
    right = rng.random(640) < 1 / (1 + np.exp(-1.7 * ease[problem]))
    more = 1.5 * ((kind == 1) & (iteration > 5))[problem]
    score = 5 + ease[problem] + right + more + rng.normal(0, 0.8, 640)
    score[0] = NAN
    return make_frame(
        list(score),
        task_type=[("a", "b")[one] for one in kind[problem]],
        problem=[str(one) for one in problem],
        iteration=list(iteration[problem]),
        success=[float(one) for one in right],
    )


@pytest.mark.parametrize("name", ["harder by 1.5", "ceiling"])
def test_what_is_not_known_of_difficulty_is_in_the_set(name: str) -> None:
    """1.5 points from iteration 1, 3, 5 or 8 of 8 on, where types differ, and where nearly all work
    is right: with the noise of each iteration's problems alone two sets of three held it there."""
    (world,) = [each for each in dating_worlds() if each.name == name]
    # 95 % less three of its errors.
    assert dating_trial(world, 40).held >= 0.85 * 40
