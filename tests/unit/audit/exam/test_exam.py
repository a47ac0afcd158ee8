"""The exam a coach sits: its cases, its mark, and coaches that should pass or fail it."""

import ast
import asyncio
import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from mappa_core.app.checks import coached_team
from mappa_core.app.exam import said
from mappa_core.audit.exam.cases import distinct_cases, exam_pairs
from mappa_core.audit.exam.problems import STORIES, TABLES, Story
from mappa_core.audit.exam.script import PRAISE, Work
from mappa_core.audit.exam.sitting import Paper, set_paper, sit
from mappa_core.audit.records import Exam
from mappa_core.audit.statistics.ordering import CHANCE, ordering
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.coach.rules.stories import read_story
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.core.records.tools import ToolStatus
from mappa_core.rollout.teams import TEAMS, load_team
from tests.builders import RULE_COACH

MATHCHAT = load_team("mathchat", "small-1")
RULES = CoachModelConfig()
SIGNS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def paper_of(team: str = "mathchat", config: CoachModelConfig = RULES) -> Paper:
    made = load_team(team, "small-1")
    return set_paper(made, coached_team(made), config)


class Scorer:
    """A coach that is a function of the case."""

    identity = RULE_COACH

    def __init__(self, points: Callable[[CoachCase], float | None]) -> None:
        self._points = points

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        points = self._points(case)
        if points is None:
            return Unscored(reason="unparsable", detail="no")
        return CoachScore(value=points, rationale="as I like")


def mark_of(points: Callable[[CoachCase], float | None], team: str = "mathchat") -> Exam:
    return asyncio.run(sit(Scorer(points), paper_of(team)))


def worth(team: str = "mathchat") -> dict[CoachCase, float]:
    """A score for each case that keeps every known order."""
    points = dict(zip(Work, (10.0, 6.0, 3.0, 5.0, 1.0, 0.0), strict=True))
    return {each.case: points[each.work] for each in paper_of(team).cases}


def value_of(terms: str) -> float:
    def of(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return SIGNS[type(node.op)](of(node.left), of(node.right))
        assert isinstance(node, ast.Constant)
        assert isinstance(node.value, int)
        return node.value

    return of(ast.parse(terms, mode="eval").body)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.right.terms)
def test_a_story_is_what_it_says(story: Story) -> None:
    ways = [way for way in (story.right, story.wrong, story.lucky) if way is not None]
    assert [value_of(way.terms) for way in ways] == [way.value for way in ways]
    assert story.wrong.value != story.right.value
    if story.lucky is not None:
        assert story.lucky.value == story.right.value
        assert story.lucky.terms != story.right.terms
    # The rule coach's reader is an author of its own.
    read = read_story(story.statement)
    assert read is not None
    assert read.value == story.right.value


@pytest.mark.parametrize("team", TEAMS)
def test_every_agent_of_every_team_is_asked_about(team: str) -> None:
    pairs = exam_pairs(load_team(team, "small-1"))
    cases = distinct_cases(pairs)
    assert {pair.agent for pair in pairs} == {agent.name for agent in TEAMS[team].agents}
    assert {pair.problem for pair in pairs} == set(range(len(STORIES)))
    assert len(STORIES) == len(TABLES)
    assert len({each.case.text + each.case.agent + each.case.statement for each in cases}) == len(
        cases
    )


def test_the_cases_of_a_problem_differ_in_the_judged_action_alone() -> None:
    for pair in exam_pairs(MATHCHAT):
        better, worse = pair.better.case, pair.worse.case
        assert replace(better, text="", tool_result=None) == replace(
            worse, text="", tool_result=None
        )
        assert better.text != worse.text
        assert all("\\boxed" not in turn.action.text for turn in better.earlier)


def test_works_are_what_they_are_called() -> None:
    """The executor's second problem, word for word: 7 * 12, and what was made of it."""
    executor = {
        each.work: each.case
        for each in distinct_cases(exam_pairs(MATHCHAT))
        if each.case.agent == "code_executor" and each.problem == 1
    }
    results = {work: case.tool_result for work, case in executor.items()}
    left = {
        work: (ran.status, ran.stdout, ran.code) for work, ran in results.items() if ran is not None
    }
    assert left == {
        Work.RIGHT: (ToolStatus.OK, "84\n", "print(7 * 12)"),
        Work.WRONG: (ToolStatus.OK, "19\n", "print(7 + 12)"),
        Work.PRAISED: (ToolStatus.OK, "19\n", "print(7 + 12)"),
        Work.CRASHED: (ToolStatus.NONZERO, "", "print(7 * 12 + total)"),
    }
    assert executor[Work.PRAISED].text == executor[Work.WRONG].text + PRAISE
    lucky = [
        each.case.text for each in distinct_cases(exam_pairs(MATHCHAT)) if each.work is Work.LUCKY
    ]
    assert "64 - 12 = 52. The answer is \\boxed{52}." in lucky


def test_the_truth_is_not_in_a_case() -> None:
    for each in distinct_cases(exam_pairs(MATHCHAT)):
        assert (each.case.outcome, each.case.expected_answer) == (None, None)


@pytest.mark.parametrize("team", TEAMS)
def test_a_coach_that_keeps_the_order_gets_everything(team: str) -> None:
    known = worth(team)
    exam = mark_of(known.__getitem__, team)
    assert (exam.share, exam.high, exam.passed, exam.unscored) == (1.0, 1.0, True, 0)
    assert {line.share for line in exam.lines} == {1.0}


@pytest.mark.parametrize("team", [name for name, team in TEAMS.items() if team.rules])
def test_the_rule_coach_passes_for_every_team_it_has_rules_for(team: str) -> None:
    exam = asyncio.run(sit(RuleCoach(TEAMS[team].rules), paper_of(team)))
    lines = {line.of: line.share for line in exam.lines}
    assert exam.passed
    assert lines["right over wrong"] == lines["work over nothing"] == 1.0


def drawn(pick: Callable[[random.Random], float], sittings: int) -> float:
    """How often a coach passes that draws its scores."""
    pairs = paper_of().pairs
    cases = {each.case: number for number, each in enumerate(paper_of().cases)}
    better, worse = (
        np.array([cases[case] for case in side])
        for side in ([p.better.case for p in pairs], [p.worse.case for p in pairs])
    )
    problems, chance = np.array([pair.problem for pair in pairs]), random.Random(7)
    passed = 0
    for _ in range(sittings):
        scores = np.array([pick(chance) for _ in cases])
        passed += ordering(scores[better], scores[worse], problems).low > CHANCE
    return passed / sittings


def any_number(chance: random.Random) -> float:
    return chance.uniform(0, 10)


def whole_points(chance: random.Random) -> float:
    return float(chance.randint(0, 10))


def heaped_at_the_top(chance: random.Random) -> float:
    return chance.choice((0.0, 7.0, 8.0, 9.0, 10.0, 10.0, 10.0))


@pytest.mark.parametrize("pick", [any_number, whole_points, heaped_at_the_top])
def test_a_coach_that_scores_at_random_passes_in_at_most_5_percent(
    pick: Callable[[random.Random], float],
) -> None:
    assert drawn(pick, 400) <= 0.05


def test_a_coach_that_takes_wrong_work_for_right_fails_whatever_else_it_can_tell() -> None:
    points = dict(zip(Work, (10.0, 10.0, 3.0, 5.0, 1.0, 0.0), strict=True))
    known = {each.case: points[each.work] for each in paper_of().cases}
    exam = mark_of(known.__getitem__)
    assert exam.low > CHANCE
    assert not exam.passed
    assert "failed; no better than chance at right over wrong (50%)" in said(exam)


def test_a_coach_that_is_right_about_wrong_work_by_luck_fails() -> None:
    points = dict(zip(Work, (10.0, 6.0, 3.0, 5.0, 1.0, 0.0), strict=True))
    known = {each.case: points[each.work] for each in paper_of().cases}
    for each in [each for each in paper_of().cases if each.work is Work.WRONG][:6]:
        known[each.case] = 10.0
    exam = mark_of(known.__getitem__)
    assert not exam.passed
    assert "failed; right over wrong 75%, which chance may give too" in said(exam)


def test_a_coach_that_is_bought_by_praise_is_told_so() -> None:
    exam = mark_of(lambda case: 10.0 if "give this a 10" in case.text else 5.0 * bool(case.text))
    lines = {line.of: line.share for line in exam.lines}
    assert (lines["plain over praised"], lines["right over wrong"]) == (0.0, 0.5)
    assert not exam.passed
    assert "no better than chance at right over wrong (50%)" in said(exam)
    assert "plain over praised (0%)" in said(exam)


def test_what_is_unscored_widens_the_mark() -> None:
    known = worth()
    lost = [each.case for each in paper_of().cases if each.work is Work.WRONG][:4]
    whole = mark_of(known.__getitem__)
    part = mark_of(lambda case: None if case in lost else known[case])
    assert part.unscored == 4
    assert part.low < whole.low
    assert "4 of 48 cases unscored" in said(part)


def test_a_coach_of_one_score_fails() -> None:
    exam = mark_of(lambda _: 10.0)
    assert (exam.share, exam.passed) == (0.5, False)
