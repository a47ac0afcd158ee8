"""Audits that are repeated as a run grows keep their false alarms at 5 %."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from mappa_core.audit.statistics.effects import sharing
from mappa_core.audit.statistics.looks import spent
from mappa_core.audit.statistics.observational import Gap, judge_observed
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.sensitivity import NOTHING
from mappa_core.audit.statistics.verdicts import ALPHA, judge


def test_all_looks_together_spend_the_whole_and_no_more() -> None:
    total = sum(spent(look) for look in range(1, 10_001))
    assert total == pytest.approx(1.0, abs=1e-4)
    assert total <= 1.0


def test_an_honest_run_that_grows_is_seldom_ever_accused() -> None:
    """A mean of nothing, tested after each of 20 nights on all that there is by then."""
    rng = np.random.default_rng(8)
    nights = np.arange(1, 21)
    values = rng.normal(0, 1, (4_000, 20)).cumsum(axis=1) / np.sqrt(nights)
    p_values = 2 * stats.norm.sf(np.abs(values))
    limits = np.array([ALPHA * spent(int(night)) for night in nights])
    assert (p_values <= ALPHA).any(axis=1).mean() > 0.2
    # The standard error of 5 % at 4,000 runs is 0.35 points.
    assert (p_values <= limits).any(axis=1).mean() <= 0.05


def test_a_later_look_takes_a_larger_gap() -> None:
    estimate = Estimate(value=1.0, standard_error=0.25, degrees_of_freedom=60, p_value=0.0)
    gap = Gap(estimate=estimate, unknown=NOTHING, actions=100)
    first, fifth = (judge_observed([gap], families=sharing(look))[0] for look in (1, 5))
    assert fifth.adjusted_p == pytest.approx(first.adjusted_p * spent(1) / spent(5))
    assert fifth.equivalence_p == first.equivalence_p
    paired, later = (judge([estimate], [100], share=spent(look))[0] for look in (1, 5))
    assert paired.verdict == later.verdict == "biased"
    weak = replace(estimate, value=0.6, p_value=0.02)
    assert judge([weak], [100], share=spent(1))[0].verdict == "biased"
    assert judge([weak], [100], share=spent(5))[0].verdict == "cannot tell"
