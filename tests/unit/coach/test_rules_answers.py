"""Points for evidence: each rule, its order, and that nothing breaks or buys them."""

import asyncio
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.coach.rules import RULE_SETS, rules_sha256
from mappa_core.coach.rules.answers import UNSETTLED, judge_plan
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.core.records.episodes import Outcome, Turn
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.core.records.tools import ToolResult, ToolStatus
from tests.builders import make_policy, make_run, make_turn

STORY = "Ana has 14 pens and buys 27 more. How many pens does Ana have now?"
RIDDLE = "What is the largest prime factor of the number of letters in these 12 words and 7 more?"
POLICY = make_policy(make_run())
PROGRAM = "```python\nprint(14 + 27)\n```"


def ran(stdout: str, *, status: ToolStatus = ToolStatus.OK, code: str = "print(1)") -> ToolResult:
    return ToolResult(
        code=code,
        status=status,
        exit_code=0 if status is ToolStatus.OK else 1,
        stdout=stdout,
        stderr="" if status is ToolStatus.OK else "Traceback\nNameError: name 'x' is not defined",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        seconds=0.1,
        cpu_seconds=0.1,
        peak_memory_bytes=1,
        tier="test",
    )


def points(
    agent: str,
    text: str,
    *,
    tool: ToolResult | None = None,
    story: str = STORY,
    earlier: tuple[Turn, ...] = (),
) -> float:
    judgement = RULE_SETS["mathchat"].judges[agent](
        CoachCase(
            statement=story,
            agent=agent,
            messages=(),
            text=text,
            tool_result=tool,
            earlier=earlier,
        )
    )
    assert judgement is not None
    assert judgement.rationale
    return judgement.points


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("", 0),
        ("<think>14 + 27</think>", 0),
        ("Plan: 14 + 27", 10),
        ("27 + 14", 10),
        ("14 + 27 = 41", 10),
        ("14 + 27 = 40", 7),
        ("Plan: 14 - 27", 4),
        ("Plan: 14 + 28", 3),
        ("Ana is happy", 0),
        ("14", 2),
        ("Ana buys 27 so she has 14 + 27 which we will now go and compute in full", 7),
    ],
)
def test_plans(plan: str, expected: float) -> None:
    assert points("problem_solver", plan) == expected


@pytest.mark.parametrize(
    ("text", "tool", "expected"),
    [
        ("I would add them.", None, 0),
        ("```python\nprint(14 + 27", None, 1),
        (PROGRAM, ran("", status=ToolStatus.NONZERO), 3),
        (PROGRAM, ran("", status=ToolStatus.TIMEOUT), 3),
        (PROGRAM, ran("  \n"), 3),
        (PROGRAM, ran("hello"), 4),
        (PROGRAM, ran("40", code="print(20 * 2)"), 5),
        (PROGRAM, ran("378", code="print(14 * 27)"), 7),
        (PROGRAM, ran("41"), 10),
        (PROGRAM, ran("41.0\n"), 10),
    ],
)
def test_programs(text: str, tool: ToolResult | None, expected: float) -> None:
    assert points("code_executor", text, tool=tool) == expected


def test_answers() -> None:
    earlier = (make_turn(POLICY, tool_result=ran("40")),)
    assert points("verifier", "The answer is 41.", earlier=earlier) == 0
    assert points("verifier", r"\boxed{many}", earlier=earlier) == 3
    assert points("verifier", r"\boxed{39}", earlier=earlier) == 4
    assert points("verifier", r"\boxed{40}", earlier=earlier) == 6
    assert points("verifier", r"\boxed{41}", earlier=earlier) == 10
    assert points("verifier", r"<think>\boxed{41}</think>", earlier=earlier) == 0


def test_where_the_words_settle_nothing_no_action_gets_full_points() -> None:
    earlier = (make_turn(POLICY, tool_result=ran("40")),)
    assert points("problem_solver", "12 + 7", story=RIDDLE) <= UNSETTLED
    assert points("code_executor", PROGRAM, tool=ran("19"), story=RIDDLE) == UNSETTLED
    assert points("verifier", r"\boxed{40}", story=RIDDLE, earlier=earlier) == UNSETTLED


@given(
    st.sampled_from(["problem_solver", "code_executor", "verifier"]),
    st.text(alphabet=st.characters(exclude_categories=())),
    st.text(),
    st.text(),
)
def test_any_words_get_points_in_range(agent: str, text: str, stdout: str, story: str) -> None:
    for words in (text, PROGRAM + text, f"\\boxed{{{text}}}"):
        assert 0 <= points(agent, words, tool=ran(stdout), story=story) <= 10
        assert 0 <= points(agent, words, tool=ran(stdout)) <= 10


def test_the_hidden_answer_is_no_part_of_a_case_by_default_and_the_rules_do_not_read_it() -> None:
    truths = {"outcome", "expected_answer"}
    assert truths <= {field.name for field in fields(CoachCase)}
    case = CoachCase(
        statement=STORY,
        agent="problem_solver",
        messages=(),
        text="14 + 27",
        tool_result=None,
        earlier=(),
    )
    assert case.outcome is None
    assert case.expected_answer is None
    outcome = Outcome(success=False, answer="1", method="math-verify")
    assert judge_plan(replace(case, outcome=outcome, expected_answer="99")) == judge_plan(case)


def test_the_coach_scores_by_the_rules_and_names_them() -> None:
    coach = RuleCoach("mathchat")
    case = CoachCase(
        statement=STORY,
        agent="problem_solver",
        messages=(),
        text="14 + 27",
        tool_result=None,
        earlier=(),
    )
    score = asyncio.run(coach.score(case))
    assert isinstance(score, CoachScore)
    assert score.value == 10
    assert "It names 2 of the 2 quantities." in score.rationale
    assert coach.identity.rubric_sha256 == rules_sha256("mathchat")
    assert coach.identity == RuleCoach("mathchat").identity


def test_an_agent_without_rules_is_left_unscored() -> None:
    case = CoachCase(
        statement=STORY, agent="poet", messages=(), text="", tool_result=None, earlier=()
    )
    unscored = asyncio.run(RuleCoach("mathchat").score(case))
    assert isinstance(unscored, Unscored)
    assert "poet" in unscored.detail


def test_the_x_of_a_box_is_no_times_sign() -> None:
    """An empty answer earns the same whatever the problem's kind."""
    boxes = "A box holds 6 pens. How many pens do 4 boxes hold?"
    assert points("problem_solver", "\\boxed{0}", story=boxes) == points(
        "problem_solver", "{0}", story=boxes
    )
