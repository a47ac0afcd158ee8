"""Sums over held-out episodes, worked by hand."""

from dataclasses import replace
from itertools import combinations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.records.runs import AgentFigures, EpisodeSummary
from mappa_core.evaluate.report import majority, pass_at_k, report, skills_of
from tests.builders import make_summary

ONE, TWO = UUID(int=1), UUID(int=2)
AGENTS = (
    AgentFigures(
        agent="solver", actions=8, scored=0, unscored=0, mean_score=None, tokens=400, tool_calls=2
    ),
)


def said(problem: UUID, answer: str | None, *, success: bool = False) -> EpisodeSummary:
    return make_summary(problem, success=success, answer=answer)


def handed_in(problem: UUID, value: float | None, skill: float) -> EpisodeSummary:
    summary = make_summary(problem, success=skill > 0, answer="submission.csv")
    return replace(summary, metric="rmse", value=value, skill=skill)


def broken(problem: UUID) -> EpisodeSummary:
    return make_summary(problem, success=None, answer=None)


def test_answers_are_counted_voted_on_and_sampled() -> None:
    episodes = [
        said(ONE, "4", success=True), said(ONE, "5"), said(ONE, "4.0", success=True),
        said(ONE, "4", success=True),
        said(TWO, "9"), said(TWO, "9"), said(TWO, "7", success=True), said(TWO, None),
    ]  # fmt: skip
    told = report(3, episodes, AGENTS)
    assert (told.problems, told.episodes, told.failed, told.invalid) == (2, 8, 0, 1)
    assert told.success == pytest.approx((3 / 4 + 1 / 4) / 2)
    # pass@2: 1 - C(1,2)/C(4,2) = 1 and 1 - C(3,2)/C(4,2) = 1/2.
    assert told.pass_at == pytest.approx({1: 0.5, 2: 0.75, 4: 1.0})
    # "4" is elected and right; "9" is elected and wrong.
    assert told.majority == 0.5
    assert told.skill is None
    # One vote of two is right: Clopper and Pearson's interval of a single trial, for few problems.
    assert told.intervals["majority"] == pytest.approx((0.0, 1.0), abs=0.02)
    assert set(told.intervals) == {"success", "pass@1", "pass@2", "pass@4", "majority"}
    assert told.metrics()["held_out/pass_at_4_low"] == told.intervals["pass@4"][0]
    assert told.metrics()["solver/held_out/tool_calls_per_action"] == 0.25
    assert told.agents_table() == [
        {
            "agent": "solver",
            "actions_per_episode": 1.0,
            "tool_calls_per_action": 0.25,
            "tokens_per_action": 50.0,
        }
    ]


def test_every_failure_counts_in_every_mean_and_stands_beside_it() -> None:
    episodes = [
        handed_in(ONE, 2.0, 0.5), handed_in(ONE, None, 0.0),
        handed_in(TWO, 1.0, 1.0), broken(TWO), broken(TWO),
    ]  # fmt: skip
    told = report(0, episodes, ())
    assert (told.failed, told.invalid) == (2, 1)
    assert told.skill == pytest.approx((0.25 + 1 / 3) / 2)
    assert told.success == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert told.majority is None
    # As many samples as the problem has that has fewest.
    assert set(told.pass_at) == {1, 2}
    for row in told.table():
        assert (row["episodes"], row["failed"], row["invalid"]) == (5, 2, 1)
    assert [row["figure"] for row in told.table()] == ["success", "pass@2", "skill (fair mean)"]


def test_a_failed_episode_has_no_skill_and_answers_have_none_at_all() -> None:
    assert skills_of([handed_in(ONE, 1.0, 1.0), broken(ONE)]) == {ONE: [1.0, 0.0]}
    assert skills_of([said(ONE, "4")]) == {}


def test_nothing_played_is_no_result() -> None:
    with pytest.raises(ValueError, match="no held-out episode"):
        report(0, [], ())


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_it_is_the_share_of_draws_with_a_right_sample(
    samples: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(samples)))
    draws = list(combinations(samples, k))
    share = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k({ONE: samples}, k) == pytest.approx(share)


def test_problems_count_alike() -> None:
    outcomes = {ONE: [True] * 4, TWO: [True, False, False, False]}
    assert pass_at_k(outcomes, 1) == pytest.approx((1 + 1 / 4) / 2)
    assert pass_at_k(outcomes, 2) == pytest.approx((1 + 1 / 2) / 2)
    assert pass_at_k(outcomes, 4) == 1.0


@pytest.mark.parametrize(("outcomes", "k"), [({}, 1), ({ONE: [True]}, 2), ({ONE: [True]}, 0)])
def test_too_few_samples_give_no_number(outcomes: dict[UUID, list[bool]], k: int) -> None:
    with pytest.raises(ValueError, match="needs at least"):
        pass_at_k(outcomes, k)


def test_the_majority_and_its_absence() -> None:
    assert majority(["7", "8", "8", None, None, None]) == "8"
    assert majority(["7", "8"]) == "7"
    assert majority([None, None]) is None
    assert majority([]) is None
