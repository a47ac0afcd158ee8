"""The share of pairs in their known order: its value, its interval, what is missing."""

import math

import numpy as np
import pytest
from scipy import stats

from mappa_core.audit.statistics.ordering import effective_pairs, interval, ordering

NAN = math.nan


def test_the_share_by_hand() -> None:
    better, worse = np.array([9.0, 5.0, 2.0, 8.0]), np.array([1.0, 5.0, 3.0, 7.0])
    found = ordering(better, worse, np.arange(4))
    # Right, tie, wrong, right.
    assert (found.share, found.pairs, found.problems, found.unscored) == (0.625, 4, 4, 0)


def test_a_perfect_order_is_one_and_still_in_doubt() -> None:
    found = ordering(np.full(12, 9.0), np.full(12, 1.0), np.repeat(np.arange(6), 2))
    # Six problems that are all alike say what six right answers say.
    exact = stats.binomtest(6, 6).proportion_ci(0.9, method="exact")
    assert (found.share, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(exact.low)


def test_one_pair_a_problem_is_clopper_and_pearson() -> None:
    """With pairs as clusters the variance is binomial but for n / (n - 1)."""
    right = np.array([1.0] * 30 + [0.0] * 10)
    count = effective_pairs(right, np.arange(40))
    assert count == pytest.approx(39.0)
    low, high = interval(right, np.arange(40))
    exact = stats.binomtest(30, 40).proportion_ci(0.9, method="exact")
    assert (low, high) == pytest.approx((exact.low, exact.high), abs=0.004)


def test_the_variance_is_that_of_the_delete_a_problem_jackknife() -> None:
    """An independent way to the same number: leave out one problem at a time."""
    rng = np.random.default_rng(3)
    problems = np.repeat(np.arange(10), 5)
    values = (rng.random(50) < np.repeat(rng.random(10), 5)).astype(float)
    left = np.array([values[problems != problem].mean() for problem in range(10)])
    jackknife = 9 / 10 * ((left - left.mean()) ** 2).sum()
    share = values.mean()
    fewer = (stats.t.ppf(0.95, 49) / stats.t.ppf(0.95, 9)) ** 2
    expected = share * (1 - share) / jackknife * fewer
    assert effective_pairs(values, problems) == pytest.approx(expected)


def test_pairs_of_few_problems_tell_less_than_pairs_of_many() -> None:
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.random(8) < 0.7, 6).astype(float)
    few = interval(alike, np.repeat(np.arange(8), 6))
    many = interval(alike, np.arange(48))
    assert few[0] < many[0] < many[1] < few[1]


def test_the_interval_covers_what_it_should() -> None:
    rng, covered = np.random.default_rng(5), 0
    problems = np.repeat(np.arange(12), 6)
    for _ in range(400):
        inclination = rng.beta(7, 3, 12)
        values = (rng.random(72) < np.repeat(inclination, 6)).astype(float)
        low, high = interval(values, problems)
        covered += low <= 0.7 <= high
    assert covered / 400 >= 0.9


def test_what_is_missing_widens_both_ends() -> None:
    rng = np.random.default_rng(1)
    better, worse, problems = rng.random(24) + 0.2, rng.random(24), np.repeat(np.arange(8), 3)
    lost = [0, 7, 11, 20]
    some, kept = better.copy(), np.isin(np.arange(24), lost, invert=True)
    some[lost] = NAN
    found = ordering(some, worse, problems)
    # As wide as the worst and the best that the lost scores could have been.
    wrong, right = (np.where(kept, better, score) for score in (-1.0, 2.0))
    assert (found.unscored, found.pairs) == (4, 24)
    assert found.low == ordering(wrong, worse, problems).low < ordering(better, worse, problems).low
    assert found.high == ordering(right, worse, problems).high
    assert found.high > ordering(better, worse, problems).high
    nothing = ordering(np.full(24, NAN), worse, problems)
    assert (nothing.share, nothing.low, nothing.high) == (0.5, 0.0, 1.0)


def test_one_score_for_everything_is_chance() -> None:
    found = ordering(np.full(24, 10.0), np.full(24, 10.0), np.repeat(np.arange(8), 3))
    assert found.share == 0.5
    assert found.low < 0.5 < found.high


def test_without_pairs_there_is_no_mark() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        ordering(np.array([]), np.array([]), np.array([]))
