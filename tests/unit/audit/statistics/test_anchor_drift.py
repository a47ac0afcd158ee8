"""Bets on anchors by task type: the e-value that alarms, which type is named, since when."""

from collections.abc import Sequence

import numpy as np
import pytest

from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics import drift
from mappa_core.audit.statistics.anchor_drift import (
    Rescored,
    bet_on_anchors,
    held_still,
    known_scores,
    round_means,
    step,
)
from mappa_core.audit.statistics.selftest import DriftWorld, named, watch_drift

NONE = np.zeros(0)


def rescored(
    rounds: Sequence[Sequence[float]] | Floats,
    repeats: Sequence[Sequence[float]] | Floats,
    types: str = "ab",
) -> Rescored:
    known, variances = known_scores([np.array(row) for row in repeats])
    return Rescored(
        known=known,
        variances=variances,
        repeats=np.array(repeats),
        rounds=tuple(map(np.array, rounds)),
        task_types=tuple(types),
    )


def test_the_e_value_is_half_pooled_and_half_of_the_types() -> None:
    rng = np.random.default_rng(0)
    scores = rescored(rng.normal(5, 1, (9, 4)), rng.normal(5, 1, (4, 3)), "aabb")
    # Three groups share the chance that known scores are off.
    share = drift.BASELINE_ALPHA / 3

    def bets(part: Rescored) -> np.ndarray:
        moved = drift.bet(part.rounds, part.known, part.error, share)
        means = [np.array([mean]) for mean in round_means(part.rounds, part.known)]
        ranked = drift.bet_on_ranks(means, round_means(part.repeats.T, part.known))
        return (moved.e_values + ranked.e_values) / 2

    expected = bets(scores) / 2 + (bets(scores.of("a")) + bets(scores.of("b"))) / 4
    assert bet_on_anchors(scores).together.e_values == pytest.approx(expected)


def test_a_single_type_is_bet_on_once() -> None:
    rng = np.random.default_rng(0)
    found = bet_on_anchors(rescored(rng.normal(5, 1, (9, 2)), rng.normal(5, 1, (2, 3)), "aa"))
    assert (found.by_type, found.named) == ({}, ())


@pytest.mark.parametrize("task_types", [2, 4])
def test_the_type_that_a_coach_turns_kinder_to_is_named_and_dated(task_types: int) -> None:
    world = DriftWorld(
        iterations=60,
        start=25,
        points=1.5,
        coach=True,
        task_types=task_types,
        kinder_to=1,
        anchors=6 * task_types,
    )
    seen = watch_drift(world, np.random.default_rng(3))
    found = seen.anchors.step
    assert seen.anchors.named == ("0",)
    assert named(world, seen) == "coach"
    assert found is not None
    assert found.earliest <= 25 <= found.latest
    assert found.low < 1.5 < found.high


def test_types_are_named_by_closed_testing() -> None:
    """Both move: the sets that hold either have means at the threshold, so that both are named."""
    base = [[5.0, 5.0, 5.0]] * 2
    both = bet_on_anchors(rescored([[5.0, 5.0]] * 6 + [[9.0, 1.0]] * 20, base))
    assert both.named == ("a", "b")
    one = bet_on_anchors(rescored([[5.0, 5.0]] * 6 + [[9.0, 5.0]] * 20, base))
    assert one.named == ("a",)
    assert one.step is not None
    assert (one.step.start, one.step.earliest, one.step.latest) == (6, 6, 6)
    assert one.step.points == pytest.approx(4.0)


def test_a_step_by_hand() -> None:
    found = step(np.array([4.0, 6.0]), np.array([5.0, 8.0, 10.0]))
    # Before 4, 6, 5 and after 8, 10: means 5 and 9, squares 2 and 2 over 3 degrees of freedom.
    assert (found.start, found.points) == (1, 4.0)
    reach = 3.182446 * (4 / 3 * (1 / 3 + 1 / 2)) ** 0.5
    assert (found.low, found.high) == (pytest.approx(4 - reach), pytest.approx(4 + reach))


def test_onset_sets_hold_the_true_iteration() -> None:
    """A mean of six anchors that moves by a point; 95 % is claimed."""
    rng, held = np.random.default_rng(8), 0
    for _ in range(300):
        noise = rng.normal(0, 1 / 6**0.5, 40)
        found = step(noise[:3], noise[3:] + (np.arange(37) >= 20))
        held += found.earliest <= 20 <= found.latest
    # The exact one-sided 1 % bound of 95 % at 300.
    assert held >= 275


def test_holding_still_is_a_test_by_hand() -> None:
    after = [[4.9], [5.0], [5.1]]
    # Means 5.0 before and after, pooled deviation 0.1: t = 0.5 / (0.1 * sqrt(2 / 3)) = 6.1.
    assert held_still(rescored(after, [[4.9, 5.0, 5.1]], "a"), 0, "a")
    # Two rounds are too few, and a move of the half point is one.
    assert not held_still(rescored(after[:2], [[4.9, 5.0, 5.1]], "a"), 0, "a")
    assert not held_still(rescored([[5.4], [5.5], [5.6]], [[4.9, 5.0, 5.1]], "a"), 0, "a")


def test_anchors_hold_still_only_where_those_of_every_type_do() -> None:
    repeats = [[4.9, 5.0, 5.1]] * 2
    # The mean of both stays, each moves by a point.
    apart = rescored([[5.9, 3.9], [6.0, 4.0], [6.1, 4.1]], repeats)
    assert not held_still(apart, 0, "ab")
    still = rescored([[4.9, 4.9], [5.0, 5.0], [5.1, 5.1]], repeats)
    assert held_still(still, 0, "ab")
    # A type that is played and has no anchor was not shown to hold still.
    assert not held_still(still, 0, "abc")


def test_a_missing_score_is_as_it_is_known() -> None:
    rounds = [np.array([7.0, np.nan])]
    assert round_means(rounds, np.array([5.0, 3.0])).tolist() == [5.0]


def test_known_scores_by_hand() -> None:
    scores = rescored([], [[4.0, 6.0], [7.0, 7.0]])
    assert scores.known.tolist() == [5.0, 7.0]
    # Variances 2 and 0, over two scorings each.
    assert scores.variances.tolist() == [1.0, 0.0]
    assert scores.error == pytest.approx(0.5)
    # What a person said is not measured.
    assert known_scores([np.array([4.0])])[1].tolist() == [0.0]


@pytest.mark.slow
@pytest.mark.parametrize("task_types", [2, 4])
def test_the_level_holds_over_two_hundred_looks_whatever_the_number_of_types(
    task_types: int,
) -> None:
    world = DriftWorld(task_types=task_types)
    seen = [watch_drift(world, np.random.default_rng([9, run])) for run in range(400)]
    # 4 % is promised; 27 are the exact one-sided 1 % bound at 400.
    assert sum(one.anchors.together.alarmed for one in seen) <= 27
