"""Credit by who should have made what."""

from dataclasses import replace

import pytest

from mappa_core.coach.rules.pipeline import judge_pipeline
from mappa_core.core.records.episodes import Turn
from mappa_core.core.records.scores import CoachCase
from mappa_core.core.records.tools import ToolStatus
from tests.unit.core.test_file_trail import DUTIES, GOOD, turn

PROGRAM = "```python\nrun()\n```"


def case(
    judged: Turn, earlier: tuple[Turn, ...], text: str = PROGRAM, printed: str = "ok", err: str = ""
) -> CoachCase:
    result = judged.tool_result and replace(judged.tool_result, stdout=printed, stderr=err)
    return CoachCase(
        statement="s",
        agent=judged.agent,
        messages=(),
        text=text,
        tool_result=result,
        earlier=earlier,
        duties=DUTIES,
    )


def points(case_: CoachCase) -> float:
    judgement = judge_pipeline(case_)
    assert judgement is not None
    assert 0 <= judgement.points <= 10
    return judgement.points


FAILED = ToolStatus.NONZERO


@pytest.mark.parametrize("index", [0, 1, 2])
def test_who_leaves_all_it_owes_gets_ten(index: int):
    assert points(case(GOOD[index], GOOD[:index])) == 10


def test_a_missing_file_costs_whoever_owes_it():
    assert points(case(turn(0, "engineer", "x"), ())) == 4
    assert points(case(turn(0, "engineer"), ())) == 4


def test_completing_in_a_second_turn_counts_what_it_adds():
    first = turn(0, "engineer", "x")
    assert points(case(turn(1, "engineer", "t"), (first,))) == 8.5
    assert points(case(turn(1, "engineer"), (turn(0, "engineer", "xt"),))) == 7


def test_a_failure_by_anothers_fault_costs_less_than_ones_own():
    err = "FileNotFoundError: [Errno 2] No such file or directory: 't'"
    without_t = (turn(0, "engineer", "x"), GOOD[1])
    crash = turn(2, "analyst", status=FAILED)
    assert points(case(crash, without_t, err=err)) == 4
    blamed = judge_pipeline(case(crash, without_t, err=err))
    assert blamed is not None
    assert "Engineer should have left t" in blamed.rationale
    # The file is there, or it was its own: no excuse.
    assert points(case(crash, GOOD[:2], err=err)) == 2
    own = err.replace("'t'", "'s'")
    assert points(case(crash, GOOD[:2], err=own)) == 2
    assert points(case(crash, GOOD[:2], err="ValueError: shapes")) == 2


def test_an_agent_cannot_blame_another_by_what_it_prints():
    liar = case(turn(1, "modeler", "", status=FAILED), GOOD[:1], printed="t is missing", err="Boom")
    assert points(liar) == 2


def test_reading_nothing_that_was_left_costs_a_point():
    assert points(case(turn(2, "analyst", "s"), GOOD[:2])) == 9
    assert points(case(turn(2, "analyst", "s", "m"), GOOD[:2], printed="")) == 9


def test_destroying_what_another_left_costs_nearly_all():
    assert points(case(turn(1, "modeler", "m", "x", "t"), GOOD[:1])) == 1


def test_words_instead_of_a_program():
    silent = replace(turn(1, "modeler"), tool_result=None)
    assert points(case(silent, GOOD[:1], text="I would train a forest")) == 0
    assert points(case(silent, GOOD[:1], text="```python\nrun(")) == 1
    assert points(case(silent, GOOD[:2], text="DONE")) == 7


def test_better_always_scores_more():
    scores = [
        points(case(replace(turn(0, "engineer"), tool_result=None), (), text="words")),
        points(case(turn(0, "engineer", status=FAILED), ())),
        points(case(turn(0, "engineer", "x"), ())),
        points(case(turn(0, "engineer", "xt"), ())),
    ]
    assert scores == sorted(set(scores))
