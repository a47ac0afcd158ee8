import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.verdicts import (
    Verdict,
    equivalence_p,
    judge,
    more_actions,
    overall,
)


def estimate(value: float, error: float, freedom: float = 1e6) -> Estimate:
    p = float(2 * stats.t.sf(abs(value) / error, freedom))
    return Estimate(value=value, standard_error=error, degrees_of_freedom=freedom, p_value=p)


@pytest.mark.parametrize(
    ("value", "error", "verdict"),
    [
        (1.0, 0.2, "biased"),
        (-1.0, 0.2, "biased"),
        (0.1, 0.2, "equivalent"),
        (0.3, 0.4, "cannot tell"),
        # Different from zero, but too small to matter.
        (0.1, 0.01, "equivalent"),
    ],
)
def test_three_verdicts(value: float, error: float, verdict: str) -> None:
    (judged,) = judge([estimate(value, error)], [100], margin=0.5)
    assert judged.verdict == verdict
    assert (judged.more_actions > 0) == (verdict == "cannot tell")


def test_the_family_is_corrected_as_statsmodels_does() -> None:
    family = [estimate(value, 1.0) for value in (0.1, 2.0, 2.3, 3.5, 1.0)]
    expected = multipletests([one.p_value for one in family], method="fdr_bh")[1]
    assert [one.adjusted_p for one in judge(family, [9] * 5)] == pytest.approx(list(expected))


def test_equivalence_by_hand() -> None:
    # (0.5 - 0.171) / 0.2 = 1.645: exactly the one-sided 5 %.
    assert equivalence_p(estimate(0.171, 0.2), 0.5) == pytest.approx(0.05, abs=1e-4)


def test_more_actions_by_hand() -> None:
    # Wanted error: 0.5 / (1.645 + 1.282) = 0.1709; (0.3417 / 0.1709)^2 = 4 times the actions.
    assert more_actions(estimate(0.0, 2 * 0.5 / (1.6449 + 1.2816)), 100, 0.5) in (300, 301)


def test_as_many_more_actions_do_tell_in_four_of_five() -> None:
    error, actions, margin = 0.4, 100, 0.5
    factor = 1 + more_actions(estimate(0.0, error), actions, margin) / actions
    smaller = error / factor**0.5
    told = 2 * stats.norm.cdf((margin - 1.6449 * smaller) / smaller) - 1
    assert told == pytest.approx(0.8, abs=0.005)


@given(st.floats(-3, 3), st.floats(0.01, 3), st.floats(0.1, 2))
def test_a_verdict_has_no_sign(value: float, error: float, margin: float) -> None:
    (one,), (other,) = (judge([estimate(v, error)], [10], margin=margin) for v in (value, -value))
    assert one.verdict == other.verdict
    assert one.more_actions == other.more_actions


def test_no_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        judge([estimate(1, 1)], [1], margin=0)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["equivalent", "biased"], "biased"),
        (["equivalent", "equivalent"], "equivalent"),
        (["equivalent", "cannot tell"], "cannot tell"),
        ([], "cannot tell"),
    ],
)
def test_one_verdict_of_a_family(verdicts: list[Verdict], expected: Verdict) -> None:
    assert overall(verdicts) == expected
