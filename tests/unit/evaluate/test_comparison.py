"""The paired comparison: by hand, under no difference, and its interval's coverage."""

import re
from dataclasses import replace
from io import StringIO
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mappa_cli.printing.evaluations import evaluation_json, print_evaluation
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Figure
from mappa_core.core.records.runs import EpisodeSummary
from mappa_core.evaluate.comparison import FEWEST_CHANGED, Comparison, compare
from mappa_core.evaluate.evaluation import HeldOut, evaluation
from mappa_core.evaluate.evaluation_tables import kind_tables
from mappa_core.evaluate.fair import fair_figures
from mappa_core.evaluate.power import plans_of
from mappa_core.evaluate.report import report
from tests.builders import make_summary

Sides = tuple[dict[UUID, list[bool]], dict[UUID, list[bool]]]


def sides(*pairs: tuple[str, str]) -> Sides:
    """Successes per problem before and after, as `1` and `0`."""
    before, after = (
        {UUID(int=index): [mark == "1" for mark in pair[side]] for index, pair in enumerate(pairs)}
        for side in (0, 1)
    )
    return before, after


def compared(*pairs: tuple[str, str], seed: int = 1) -> Comparison:
    return compare(*sides(*pairs), resamples=2000, seed=seed)


def test_two_problems_by_hand() -> None:
    # 1/2 -> 1 and 0 -> 1/2: two problems that agree tell next to nothing.
    result = compared(("10", "11"), ("00", "01"))
    assert (result.problems, result.episodes, result.changed) == (2, 4, 2)
    assert (result.before, result.after, result.difference) == (0.25, 0.75, 0.5)
    assert (result.low, result.high) == (-1.0, 1.0)


def test_the_interval_by_hand() -> None:
    # One of nine problems improves: s^2 = (8 / 9 + 2) / 9, and t(8) = 2.306.
    result = compared(("0", "1"), *[("0", "0")] * 8)
    reach = 2.306 * (26 / 9 / 9 / 9) ** 0.5
    assert (result.low, result.high) == pytest.approx((1 / 9 - reach, 1 / 9 + reach), abs=1e-3)


def test_the_bootstrap_by_hand() -> None:
    # 12 of 60 problems improve, a spread of 12 * 0.8 = 9.6 full changes; of 13, 10.2. A resample
    # holds 13 of them B(60, 13/60) times: P(at most 6) = 0.015, P(at most 7) = 0.037, and
    # P(at most 18) = 0.956, P(at most 19) = 0.977.
    result = compared(*[("0", "1")] * 13, *[("0", "0")] * 47)
    assert (result.low, result.high) == pytest.approx((7 / 60, 19 / 60))
    reach = 2.001 * ((9.6 + 2) / 60 / 60) ** 0.5
    rare = compared(*[("0", "1")] * 12, *[("0", "0")] * 48)
    assert (rare.low, rare.high) == pytest.approx((0.2 - reach, 0.2 + reach), abs=1e-4)


@pytest.mark.parametrize(("problems", "rare"), [(51, 0.04), (64, 0.02), (64, 0.04)])
def test_a_rare_change_of_many_problems_is_covered(problems: int, rare: float) -> None:
    """The bootstrap alone covers .87, .72 and .90; its interval is a point where none changed."""
    rng, ids_ = np.random.default_rng(problems), [UUID(int=at) for at in range(problems)]
    before = {each: [0.0] for each in ids_}
    found = [
        compare(before, dict(zip(ids_, after, strict=True)), resamples=200, seed=1)
        for after in (rng.random((300, problems, 1)) < rare).astype(float).tolist()
    ]
    assert np.mean([one.low <= rare <= one.high for one in found]) >= 0.92
    assert all(one.low < one.high for one in found)


def test_all_problems_that_change_alike_leave_no_interval_of_a_point() -> None:
    result = compared(*[("0", "1")] * 64)
    assert (result.low, result.high, result.verdict) == (
        pytest.approx(0.956, abs=1e-3),
        1,
        "better",
    )


def test_problems_weigh_the_same_however_many_episodes_they_have() -> None:
    assert compared(("0", "1"), ("0000", "0000")).difference == 0.5


@given(st.lists(st.text("01", min_size=1, max_size=4), min_size=1, max_size=20))
def test_what_did_not_change_differs_by_nothing(marks: list[str]) -> None:
    result = compared(*[(mark, mark) for mark in marks])
    assert (result.difference, result.low) == (0.0, -result.high)
    assert (result.changed, result.verdict) == (0, "cannot tell")


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([("0", "1")] * 20 + [("1", "1")] * 44, "better"),
        ([("1", "0")] * 20 + [("1", "1")] * 44, "worse"),
        ([("1", "0"), ("0", "1")] * 10 + [("1", "1")] * 44, "cannot tell"),
        ([("0", "1")] * FEWEST_CHANGED, "better"),
        ([("0", "1")] * (FEWEST_CHANGED - 1), "cannot tell"),
        ([("0", "1")] * (FEWEST_CHANGED - 1) + [("1", "1")] * 59, "cannot tell"),
        ([("0", "1")] * 2, "cannot tell"),
    ],
)
def test_verdicts(pairs: list[tuple[str, str]], verdict: str) -> None:
    result = compared(*pairs)
    assert result.verdict == verdict
    assert verdict in str(result.table())


def test_fewest_changed_is_where_a_sign_test_begins_to_speak() -> None:
    assert 2 * 0.5**FEWEST_CHANGED <= 0.05 < 2 * 0.5 ** (FEWEST_CHANGED - 1)


def test_swapping_before_and_after_turns_the_sign() -> None:
    before, after = sides(*[("0", "1")] * 9, *[("1", "0")] * 3, *[("1", "1")] * 20)
    forth = compare(before, after, resamples=2000, seed=1)
    back = compare(after, before, resamples=2000, seed=1)
    assert forth.difference == -back.difference
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))


def test_the_seed_alone_decides_the_interval() -> None:
    # Shares of many episodes each, so that means of resamples hardly ever tie.
    generator = np.random.default_rng(1)
    marks = generator.random((60, 11)) < np.where(generator.random((60, 1)) < 0.5, 0.1, 0.9)
    pairs = [("".join("01"[mark] for mark in row), "0") for row in marks.astype(int).tolist()]
    assert compared(*pairs, seed=1) == compared(*pairs, seed=1)
    assert compared(*pairs, seed=1) != compared(*pairs, seed=2)


def test_the_interval_covers_the_true_gain_about_as_often_as_it_says() -> None:
    # 64 problems: 0.25 -> 0.55 at random. 400 experiments: the standard error of a coverage of
    # 0.95 is 0.011; the percentile bootstrap of 64 problems is a little too narrow.
    generator = np.random.default_rng(7)
    covered = 0
    for seed in range(400):
        before, after = generator.random((2, 64)) < np.array([[0.25], [0.55]])
        pairs = [(str(int(one)), str(int(other))) for one, other in zip(before, after, strict=True)]
        result = compare(*sides(*pairs), resamples=500, seed=seed)
        covered += result.low <= 0.3 <= result.high
    assert 0.91 <= covered / 400 <= 0.985


def test_metrics_are_the_figures() -> None:
    metrics = compared(("10", "11"), ("00", "01")).metrics()
    assert metrics["held_out/gain"] == metrics["held_out/after"] - metrics["held_out/before"] == 0.5


def test_other_problems_or_none_are_refused() -> None:
    before, after = sides(("0", "1"))
    for one, other in ((before, {}), ({}, {}), (before, {UUID(int=9): [True]})):
        with pytest.raises(ValueError, match="the same problems, at least one"):
            compare(one, other, resamples=10, seed=1)
    assert compare(before, after, resamples=10, seed=1).problems == 1


def measured(step: int, *found: tuple[str, bool]) -> HeldOut:
    """The episodes of one step, one of each problem: its task type, and whether it was solved."""
    episodes = [
        replace(make_summary(ids.problem_id(str(at)), success=success, answer="5"), task_type=kind)
        for at, (kind, success) in enumerate(found)
    ]
    return HeldOut(report=report(step, episodes, ()), episodes=episodes)


def test_each_task_type_is_compared_by_itself() -> None:
    before = measured(0, ("aime", False), ("aime", False), ("amc", True), ("amc", False))
    after = measured(9, ("aime", False), ("aime", True), ("amc", True), ("amc", True))
    found = evaluation("run", before, after, resamples=200, seed=1)
    assert {
        kind: (each.success.problems, each.success.before, each.success.after)
        for kind, each in found.strata["task_type"].items()
    } == {"aime": (2, 0.0, 0.5), "amc": (2, 0.5, 1.0)}
    shown = evaluation_json(found)["by_task_type"]
    assert isinstance(shown, dict)
    assert shown["amc"]["success/gain"] == 0.5
    assert shown["amc"]["verdict"] == "cannot tell"
    console = Console(width=120, record=True, file=StringIO())
    print_evaluation(console, found)
    assert re.search(r"aime\W+2\W+2\W+0\.0%\W+50\.0%\W+50\.0%", console.export_text())


def test_one_task_type_is_no_table_of_its_own() -> None:
    one = measured(0, ("aime", False), ("aime", True))
    assert evaluation("run", one, one, resamples=200, seed=1).strata == {}


def known(*found: tuple[dict[str, str | int], str]) -> HeldOut:
    """One problem per pair: its attributes, and the successes of its samples as `1` and `0`."""
    episodes = [
        replace(
            make_summary(ids.problem_id(str(at)), success=mark == "1", answer=mark),
            task_type="competition",
            attributes=attributes,
        )
        for at, (attributes, marks) in enumerate(found)
        for mark in marks
    ]
    return HeldOut(report=report(1, episodes, ()), episodes=episodes)


AIME: dict[str, str | int] = {"contest": "aime", "year": 2024}
OLD_AIME: dict[str, str | int] = {"contest": "aime", "year": 1983}
AMC: dict[str, str | int] = {"contest": "amc"}


def test_aime_is_measured_beside_amc_and_any_other_attribute_on_request() -> None:
    before = known((AIME, "0010"), (OLD_AIME, "0000"), (AMC, "0110"))
    after = known((AIME, "1010"), (OLD_AIME, "0100"), (AMC, "1111"))
    contests = evaluation("run", before, after, resamples=200, seed=1).strata
    assert set(contests) == {"contest"}
    aime = contests["contest"]["aime"]
    assert (aime.samples, aime.success.before, aime.success.after) == (4, 0.125, 0.375)
    assert (aime.before.pass_at[4], aime.after.pass_at[4]) == (0.5, 1.0)
    found = evaluation("run", before, after, resamples=200, seed=1, by=["year"])
    assert list(found.strata["year"]) == ["1983", "2024", "unknown"]
    assert evaluation_json(found)["by_year"]
    with pytest.raises(ConfigError, match="has a paper: they have contest, task_type, year"):
        evaluation("run", before, after, resamples=200, seed=1, by=["paper"])


def test_each_benchmark_is_planned_by_itself() -> None:
    before = known(*[(AIME, "0")] * 12, *[(AMC, "1")] * 30)
    found = evaluation("run", before, before, resamples=50, seed=1)
    plans = plans_of(found, 0.3, simulations=25)
    assert {name: (each.problems, each.samples) for name, each in plans.items()} == {
        "all": (42, 1),
        "aime": (12, 1),
        "amc": (30, 1),
    }
    assert plans["aime"].chance < 0.8
    assert plans["aime"].problems_needed in (24, 48)
    # It is solved always: there is nothing to gain.
    assert plans["amc"].chance == 0.0
    assert (plans["amc"].samples_needed, plans["amc"].problems_needed) == (None, None)


def played(problem: int, kind: str, name: str, value: float | None, constant: float = 0.5):
    """One episode of a task; without a value it handed in nothing."""
    return replace(
        make_summary(ids.problem_id(str(problem)), success=value is not None, answer=None),
        task_type=kind,
        figures=(Figure(name=name, value=value, constant=constant),),
    )


def failed(problem: int, kind: str) -> EpisodeSummary:
    found = make_summary(ids.problem_id(str(problem)), success=None, answer=None)
    return replace(found, task_type=kind)


def test_fair_metrics_charge_failures_and_know_that_less_error_is_better() -> None:
    spoilt = [played(at, "regression", "rmse_percent_of_range", None, 40.0) for at in range(8)]
    mended = [played(at, "regression", "rmse_percent_of_range", 10.0, 40.0) for at in range(8)]
    before = [*spoilt, played(9, "classification", "accuracy", 0.9)]
    before += [played(10, "rare classes", "f1", 0.4)]
    after = [*mended, failed(9, "classification"), played(10, "rare classes", "f1", 0.8)]
    right, f1, error = fair_figures(before, after, resamples=200, seed=1)
    assert (f1.name, f1.comparison.before, f1.comparison.after) == ("f1", 0.4, 0.8)
    assert (right.task_type, right.name, right.charged) == ("classification", "accuracy", (0, 1))
    assert (right.comparison.before, right.comparison.after) == (0.9, 0.5)
    assert (error.comparison.before, error.comparison.after) == (40.0, 10.0)
    assert (error.charged, error.comparison.verdict, error.verdict) == ((8, 0), "worse", "better")
    assert fair_figures([failed(1, "x")], [failed(1, "x")], resamples=200, seed=1) == ()


def test_the_fair_table_says_what_was_charged_and_that_less_error_is_better() -> None:
    spoilt = [played(at, "regression", "rmse_percent_of_range", None, 40.0) for at in range(8)]
    mended = [played(at, "regression", "rmse_percent_of_range", 10.0, 40.0) for at in range(8)]
    sides = (
        HeldOut(report=report(step, episodes, ()), episodes=episodes)
        for step, episodes in ((0, spoilt), (9, mended))
    )
    (fair,) = kind_tables(evaluation("run", *sides, resamples=200, seed=1))
    assert fair.title.startswith("Fair metrics")
    (row,) = (dict(zip(fair.columns, cells, strict=True)) for cells in fair.rows)
    assert row == {
        "task type": "regression",
        "figure": "RMSE, % of range (lower is better)",
        "tasks": "8",
        "charged": "8, 0 of 8",
        "before": "40.000",
        "after": "10.000",
        "change": "-30.000",
        "95 % interval": "-40.000 to -13.280",
        "": "better",
    }
