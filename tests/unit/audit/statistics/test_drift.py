import numpy as np
import pytest

from mappa_core.audit.statistics import drift
from mappa_core.audit.statistics.selftest import DriftWorld, named, watch_drift


def test_one_bet_by_hand() -> None:
    """One anchor known to be 5 that gets a 10, once."""
    wealth = drift.bet([np.array([10.0])], np.array([5.0]))
    # Gain 0.5 - 0.025; the largest bet on it is 1 / (0.5 + 0.025) either way.
    up = [1 + bet / 0.525 * (0.5 - 0.025) for bet in drift.BETS]
    down = [1 + bet / 0.525 * (-0.5 - 0.025) for bet in drift.BETS]
    # Half of the capital was laid (1/1 - 1/2), half waits.
    expected = 0.5 * np.mean(up + down) + 0.5
    assert wealth.e_values == pytest.approx([expected])


def test_capital_comes_in_shares_that_sum_to_one() -> None:
    nothing = [np.array([np.nan])] * 7
    assert drift.bet(nothing, np.array([5.0])).e_values == pytest.approx(np.ones(7))


def factors(p: float) -> list[float]:
    """Of every bet on one rank, on a high and on a low one."""
    linear = [1 + sign * bet * (2 * p - 1) for sign in (1, -1) for bet in drift.BETS]
    return [*linear, 0.5 / (1 - p) ** 0.5, 0.5 / p**0.5]


def test_ranks_by_hand() -> None:
    """The second of two rising values ranks in the upper half: p = (1 + u) / 2."""
    u = np.random.default_rng(4)
    first, second = u.random(), (1 + u.random()) / 2
    grown, then = factors(first), factors(second)
    wealth = drift.bet_on_stream([np.array([1.0]), np.array([2.0])], seed=4)
    expected = np.mean([(g / 2 + 1 / 6) * t for g, t in zip(grown, then, strict=True)]) + 1 / 3
    assert wealth.e_values[1] == pytest.approx(expected)


def test_a_coach_at_the_edge_of_tolerance_does_not_grow_the_wealth_on_average() -> None:
    """The expected factor of every bet is at most one where the mean moved by the tolerance."""
    rng = np.random.default_rng(0)
    scores = 5 + drift.TOLERANCE_POINTS + rng.choice([-3.0, 3.0], size=(20_000, 1))
    factors = np.exp([drift.log_growth(s, np.array([5.0]), 0.025) for s in scores])
    mean, error = factors.mean(axis=0), factors.std(axis=0) / 20_000**0.5
    assert np.all(mean <= 1 + 3 * error)


@pytest.mark.parametrize(
    ("world", "cause"),
    [
        (DriftWorld(iterations=60), "none"),
        (DriftWorld(iterations=60, start=20, points=1.0, coach=True), "coach"),
        (DriftWorld(iterations=60, start=20, points=1.0, coach=True, rubric=True), "rubric"),
        (DriftWorld(iterations=60, start=20, points=1.0), "policy"),
        (DriftWorld(iterations=60, start=20, points=-1.0, coach=True), "coach"),
    ],
)
def test_who_changed(world: DriftWorld, cause: str) -> None:
    seen = watch_drift(world, np.random.default_rng(5))
    assert named(world, seen) == cause
    if cause in ("coach", "rubric"):
        assert seen.anchors.together.onset is not None
        assert abs(seen.anchors.together.onset - 20) <= 2


def test_the_anchors_silence_shows_nothing() -> None:
    """Few anchors of a moody coach: the stream moved, and who moved it is not known."""
    world = DriftWorld(iterations=60, start=20, points=1.0, anchors=1, repeats=2, deviation=3.0)
    assert named(world, watch_drift(world, np.random.default_rng(5))) == "coach or policy"


def test_problems_that_get_harder_are_no_drift_of_the_policy() -> None:
    seen = watch_drift(DriftWorld(iterations=60, easiest_first=True), np.random.default_rng(5))
    assert seen.stream.alarmed
    assert not seen.own
    assert (
        drift.attribute(seen.anchors.together, seen.stream, still=True, own=False)
        == "policy or order"
    )
    assert drift.attribute(seen.anchors.together, seen.stream, still=True, own=True) == "policy"


def test_own_ranks_by_hand() -> None:
    """One problem comes back with more points, in the upper half of two: p = (1 + u) / 2."""
    rounds, played = [np.array([1.0]), np.array([9.0]), np.array([2.0])], [["a"], ["b"], ["a"]]
    wealth = drift.bet_on_own_ranks(rounds, played, seed=4)
    p = (1 + np.random.default_rng(4).random()) / 2
    # First visits are not bet on: three quarters of the capital are laid, one quarter waits.
    assert wealth.e_values == pytest.approx([1.0, 1.0, 0.75 * np.mean(factors(p)) + 0.25])


def test_bets_on_a_rank_are_fair() -> None:
    """Over uniform ranks every factor is one on average: the bets have no price and no profit."""
    # Midpoints of a fine grid; the power bet's singularity at the end is integrable.
    mean = np.mean([factors((place + 0.5) / 10_000) for place in range(10_000)], axis=0)
    assert mean == pytest.approx(np.ones(12), abs=0.005)
