"""Rates that are counted have the exact interval that scipy gives."""

import pytest
from scipy import stats

from mappa_core.audit.statistics.counting import clopper_pearson


@pytest.mark.parametrize(("hits", "runs"), [(0, 60), (1, 60), (30, 60), (59, 60), (60, 60), (3, 7)])
def test_a_share_has_its_exact_interval(hits: int, runs: int) -> None:
    theirs = stats.binomtest(hits, runs).proportion_ci(0.95)
    low, high = clopper_pearson(hits, runs - hits, 0.95)
    assert low == pytest.approx(float(theirs.low), abs=1e-12)
    assert high == pytest.approx(float(theirs.high), abs=1e-12)
