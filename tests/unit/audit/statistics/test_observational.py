import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from mappa_core.audit.statistics.observational import (
    Gap,
    Word,
    holm,
    judge_observed,
    overall_word,
)
from mappa_core.audit.statistics.regression import Estimate, p_value
from mappa_core.audit.statistics.sensitivity import NOTHING, Unknown


def unknown(**points: float) -> Unknown:
    from dataclasses import replace

    return replace(NOTHING, **points)


def gap(value: float, error: float, hidden: Unknown = NOTHING, at_most: Word = "biased") -> Gap:
    estimate = Estimate(
        value=value,
        standard_error=error,
        degrees_of_freedom=1e6,
        p_value=p_value(value, error, 1e6),
    )
    return Gap(estimate=estimate, unknown=hidden, actions=100, at_most=at_most)


@pytest.mark.parametrize(
    ("one", "verdict", "beyond"),
    [
        (gap(2.0, 0.2), "biased", "margin"),
        # 0.8 - 1.96 * 0.2 is above zero and below the margin.
        (gap(0.8, 0.2), "biased", "zero"),
        # What right work gets more than wrong work could explain it.
        (gap(2.0, 0.2, unknown(outcome=1.7)), "suspected", "margin"),
        (gap(2.0, 0.2, unknown(measured=1.7)), "suspected", "margin"),
        (gap(2.0, 0.2, unknown(outcome=1.5)), "biased", "margin"),
        # The missing scores could lower it to 0.2.
        (gap(2.0, 0.2, unknown(missing_low=-1.8)), "cannot tell", ""),
        (gap(2.0, 0.2, at_most="suspected"), "suspected", "margin"),
        (gap(2.0, 0.2, at_most="cannot tell"), "cannot tell", "margin"),
        (gap(0.1, 0.2), "equivalent", ""),
        (gap(0.1, 0.2, unknown(missing_high=0.2)), "cannot tell", ""),
        (gap(0.1, 0.2, unknown(measured=0.2)), "cannot tell", ""),
        # Different from zero, but too small to matter.
        (gap(0.1, 0.01), "equivalent", "zero"),
    ],
)
def test_what_is_said_of_one_gap(one: Gap, verdict: Word, beyond: str) -> None:
    (judged,) = judge_observed([one], margin=0.5)
    assert (judged.verdict, judged.beyond) == (verdict, beyond)
    assert (judged.more_actions > 0) == (verdict == "cannot tell")


def test_the_family_is_corrected_as_statsmodels_does() -> None:
    values = [0.2, 0.001, 0.03, 0.04, 1.0]
    expected = multipletests(values, method="holm")[1]
    assert expected is not None
    assert holm(values) == pytest.approx(list(expected))


def test_families_share_the_level() -> None:
    (alone,), (shared,) = (judge_observed([gap(0.5, 0.24)], 0.4, families=n) for n in (1, 2))
    assert shared.adjusted_p == pytest.approx(2 * alone.adjusted_p)
    assert (alone.verdict, shared.verdict) == ("biased", "cannot tell")


def test_the_sensitivity_value_is_that_of_the_papers_example() -> None:
    """Cinelli & Hazlett (2020), section 4: t = 4.18 at 783 degrees of freedom, 13.9 %."""
    hidden = unknown(square=4.18**2 / 783)
    assert hidden.robustness(1.0) == pytest.approx(0.139, abs=0.0005)


@given(st.floats(-3, 3), st.floats(0.01, 3), st.floats(0, 2))
def test_a_verdict_has_no_sign(value: float, error: float, hidden: float) -> None:
    both = [judge_observed([gap(v, error, unknown(outcome=hidden))])[0] for v in (value, -value)]
    assert both[0].verdict == both[1].verdict
    assert both[0].robustness == pytest.approx(both[1].robustness)


def test_no_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        judge_observed([gap(1, 1)], margin=0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["equivalent", "suspected", "biased"], "biased"),
        (["equivalent", "suspected"], "suspected"),
        (["equivalent", "equivalent"], "equivalent"),
        (["equivalent", "cannot tell"], "cannot tell"),
        ([], "cannot tell"),
    ],
)
def test_one_word_of_a_family(words: list[Word], expected: Word) -> None:
    assert overall_word(words) == expected


def test_an_unknown_error_proves_nothing() -> None:
    (judged,) = judge_observed([gap(9.0, np.inf)])
    assert judged.verdict == "cannot tell"
