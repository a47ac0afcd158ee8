"""What a coach sees."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.coach.evidence import beside_own, build_prompt, case_text, file_trail, kept, shown
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.core.records.episodes import Message, Outcome
from mappa_core.core.records.scores import Fact
from mappa_core.core.records.tools import ToolStatus
from tests.builders import make_policy, make_run, make_tool_result, make_turn
from tests.unit.coach.cases import make_case

RUBRIC = load_rubrics("mathchat", "paper-1").rubrics["problem_solver"]


def test_long_output_keeps_both_ends_and_says_what_is_missing() -> None:
    text = "BEGIN" + "x" * 20_000 + "KeyError: 'target'"
    result = replace(make_tool_result(), stderr=text, stderr_omitted_bytes=77)
    case = replace(make_case(), tool_result=result)
    user = build_prompt(case, RUBRIC).user
    assert "BEGIN" in user
    assert "KeyError: 'target'" in user
    assert "77 bytes of it were not recorded" in user
    assert "characters left out" in user
    assert len(user) < 12_000


@given(st.text(max_size=60), st.integers(1, 40))
def test_what_is_kept_and_what_is_said_to_be_left_out_make_the_whole(text: str, limit: int) -> None:
    short = kept(text, limit)
    if len(text) <= limit:
        assert short == text
        return
    head, tail = limit - limit // 2, limit // 2
    assert short.startswith(text[:head])
    assert short.endswith(text[len(text) - tail :])
    assert f" {len(text) - limit} characters" in short


def test_a_case_says_who_saw_wrote_and_ran_what() -> None:
    prompt = build_prompt(make_case("Divide."), RUBRIC)
    told = "Its program ended: ok."
    for part in ("Ana has 4 boxes", "<<<turn 0, planner>>>\nPlan.", "Divide.", told):
        assert part in prompt.user
    assert "What is 1 + 1?" not in prompt.user  # a worked example, not what this action answers
    assert prompt.user.startswith(f"Case {prompt.marker}: ")
    assert prompt.marker not in prompt.system


def test_a_text_that_the_coach_has_read_is_named_where_an_agent_saw_it_again() -> None:
    case, plan = make_case(), "First multiply the boxes by the pens in each, then give the number."
    earlier = (make_turn(make_policy(make_run(), "planner"), text=f"<think>Hm.</think>{plan}"),)
    saw = Message(role="user", content=f"{case.statement}\n{plan}\nOutput: 20")
    user = build_prompt(replace(case, earlier=earlier, messages=(saw,)), RUBRIC).user
    assert (user.count(case.statement), user.count(plan)) == (1, 1)
    assert "\n(the task)\n(turn 0)\nOutput: 20\n" in user
    # One of which the coach read a part alone is shown where it was seen, be it for its thoughts.
    thought = f"<think>{'Hm. ' * 1000}</think>{plan} {plan}"
    earlier = (make_turn(make_policy(make_run(), "planner"), text=thought),)
    saw = Message(role="user", content=f"{plan} {plan}")
    user = build_prompt(replace(case, earlier=earlier, messages=(saw,)), RUBRIC).user
    assert f"the agent saw>>>\n{plan} {plan}\n" in user
    long = f"{plan} " * 100
    earlier = (make_turn(make_policy(make_run(), "planner"), text=long),)
    saw = Message(role="user", content=long)
    assert long in build_prompt(replace(case, earlier=earlier, messages=(saw,)), RUBRIC).user


def test_what_it_was_told_to_do_stands_before_its_teams_turns() -> None:
    user = build_prompt(make_case(), RUBRIC).user
    order = ("<<<task", "was told", "<<<turn 0", "the agent saw", "the agent wrote", "<<<stdout")
    places = [user.index(part) for part in order]
    assert places == sorted(places)


def test_an_agents_own_earlier_turn_is_part_of_what_it_saw() -> None:
    messages = (
        Message(role="user", content="an example"),
        Message(role="assistant", content="its reply"),
        Message(role="user", content="the question"),
        Message(role="assistant", content="first try", token_ids=(1,)),
        Message(role="user", content="it failed"),
    )
    user = build_prompt(replace(make_case(), messages=messages), RUBRIC).user
    assert "the agent saw>>>\nthe question" in user
    assert "the agent had written>>>\nfirst try" in user
    assert "it failed" in user
    assert "an example" not in user


def test_the_file_trail_names_who_wrote_what() -> None:
    turn = make_turn(make_policy(make_run(), "data_engineer"), tool_result=make_tool_result())
    trail = file_trail(replace(make_case(), earlier=(turn,)))
    assert trail[0].startswith("b.txt (1 bytes, sha256 0b0b0b0b0b0b): written by data_engineer")
    assert any("a.csv" in line and "written by this action" in line for line in trail)
    assert trail[-1] == "link: refused, a symbolic link"


def test_the_truth_is_said_only_where_the_case_has_it() -> None:
    case = make_case()
    assert "final answer was" not in build_prompt(case, RUBRIC).user
    outcome = Outcome(success=False, answer="21", method="math-verify")
    told = build_prompt(replace(case, outcome=outcome), RUBRIC).user
    assert "final answer was wrong" in told
    assert "expected answer" not in told
    full = build_prompt(replace(case, outcome=outcome, expected_answer="20"), RUBRIC).user
    assert "The expected answer is: 20" in full


def test_measured_facts_are_evidence() -> None:
    case = replace(make_case(), facts=(Fact(name="roc_auc", text="0.81"),))
    assert "roc_auc: 0.81" in build_prompt(case, RUBRIC).user


def test_the_marker_depends_on_everything_the_agents_wrote() -> None:
    cases = [make_case(), make_case("Divide."), make_case("x", place="stdout")]
    cases += [make_case("x", place=place) for place in ("stderr", "file", "earlier", "code")]
    assert len({build_prompt(case, RUBRIC).marker for case in cases}) == len(cases)
    assert build_prompt(make_case(), RUBRIC) == build_prompt(make_case(), RUBRIC)


def test_a_correction_is_asked_for_only_where_wanted() -> None:
    case = make_case()
    assert '"correction"' not in build_prompt(case, RUBRIC).system
    assert '"correction"' in build_prompt(case, RUBRIC, correction=True).system


@given(st.text())
def test_whatever_is_shown_can_be_sent(text: str) -> None:
    sent = shown(text)
    sent.encode("utf-8")
    assert "<<<" not in sent
    assert "<|" not in sent
    assert "\x00" not in sent


@pytest.mark.parametrize(
    ("text", "solution", "said"),
    [
        (r"So \boxed{26}.", "37 * 10 = 370", "Its answer: 26\nYour own: 370\nThese are different"),
        (r"\boxed{370}", r"That is \boxed{370.0}.", "These are the same."),
        ("A plan.", "37 * 10 = 370", None),
        ("Plan: 60 - 48", "12", "Its last calculation: 60 - 48\nYour own: 12\nThese are the same"),
        # What a calculation is said to come to is a part of it: later agents take it over.
        (
            "He has 3 x 19 = 75 left.",
            "57",
            "Its last calculation: 3 * 19 = 75\nYour own: 57\nThese are different",
        ),
        ("He has 3 x 19 = 57 left.", "57", "3 * 19 = 57\nYour own: 57\nThese are the same."),
        ("7 + 56 = 22 = Carla has 22 now.", "63", "7 + 56 = 22\nYour own: 63\nThese are different"),
        ("They cost 2 * 4 = $8.", "8", "2 * 4 = 8\nYour own: 8\nThese are the same."),
        ("8 crates * 19 cards / crate = 141 cards", "152", "8 * 19 = 141\nYour own: 152\nThese a"),
        ("8 crates of 19 cards: 8 * 19", "152", "8 * 19\nYour own: 152\nThese are the same."),
        ("12 - 9 = 108", "108", "12 - 9 = 108\nYour own: 108\nThese are different answers."),
        ("Plan: 40 - 10 =", "30", "Its last calculation: 40 - 10\nYour own: 30\nThese are the s"),
        # What is wrong with a long plan is told as it is of a short one.
        (
            "Of 7, 3 + 4 = 9 are red.\nSo 9 + 7 = 8 * 2.",
            "21",
            "Its last calculation: 8 * 2\nYour o",
        ),
        (
            "In 2 jars, 14 * 2 = 26. So 26 - 2",
            "28",
            "Its last calculation: 26 - 2\nYour own: 28\nTh",
        ),
        ("Plan: 60 + 48", "60 - 48 = 12", "These are different answers."),
        # A model gives its result alone, or says what it counted.
        ("Plan: 33 + 30", "3", "Your own: 3\nThese are different answers."),
        ("Plan: 33 - 30", "3", "These are the same."),
        (r"\boxed{282}", "282 tickets", "Its answer: 282\nYour own: 282\nThese are the same."),
        ("Plan: 6 * 47", "6 jars * 47 tickets per jar = 282 tickets.", "These are the same."),
        (r"\boxed{1600}", "40 * 40 = 1,600", "Your own: 1,600\nThese are the same."),
        (
            "Plan: 2 jars * 14 books = 24",
            "2 * 14 = 28",
            "Its last calculation: 2 * 14 = 24\nYour own: 28\nThese are d",
        ),
        ("Plan: 2 x 14", "28", "calculation: 2 * 14\nYour own: 28\nThese are the same."),
        # What a model says behind its result is none of it.
        (r"\boxed{66}", "6 * 11 = 66 books\nTherefore, Theo has 66 books more.", "are the same."),
        (r"\boxed{12}", "5 + 7 = 12. So there are 12 of them.", "own: 12\nThese are the same."),
        (r"\boxed{12}", "The number of jars = as many as before", None),
        (r"\boxed{\frac{1}{2}}", "2 / 4 = 1/2", "Your own: 1/2\nThese are the same."),
        (r"\boxed{26}", "5 dollars and 30 cents", None),
        (r"\boxed{26}", "I cannot tell.", None),
        (r"\boxed{26}", None, None),
    ],
)
def test_an_answer_stands_beside_the_coachs_own(
    text: str, solution: str | None, said: str | None
) -> None:
    case = replace(make_case(text), tool_result=None, own_solution=solution)
    if said is None:
        assert beside_own(case) is None
        assert "beside your own" not in case_text(case, None)
    else:
        assert said in (beside_own(case) or "")
        assert said in case_text(case, None)


def test_what_a_program_printed_last_is_its_answer() -> None:
    case = replace(make_case("10\n444\n", place="stdout"), own_solution="60 - 48 = 12")
    assert beside_own(case) == "Its answer: 444\nYour own: 12\nThese are different answers."


@pytest.mark.parametrize(("text", "said"), [("", True), (" \n", True), ("A plan.", False)])
def test_a_coach_is_told_where_an_agent_wrote_nothing(text: str, *, said: bool) -> None:
    case = replace(make_case(text), own_solution="60 - 48 = 12")
    assert ("The agent wrote nothing." in case_text(case, None)) == said


def none_beside_12(why: str) -> str:
    return f"Its answer: none ({why})\nYour own: 12\nThese are different answers."


def test_an_answer_that_is_owed_and_missing_is_named() -> None:
    boxing = Message(role="assistant", content=r"The answer is \boxed{41}.")
    told = Message(role="user", content="What is 60 - 48?")
    case = replace(
        make_case(r"The answer is \box{12}."), tool_result=None, own_solution="60 - 48 = 12"
    )
    assert beside_own(replace(case, messages=(told,))) is None
    owed = replace(case, messages=(boxing, told))
    assert beside_own(owed) == none_beside_12("nothing stands in \\boxed{}")
    silent = replace(make_case("", place="stdout"), text="print()", own_solution="60 - 48 = 12")
    assert beside_own(silent) == none_beside_12("its program printed none")


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("system", "The last complete ```python block you write is run."),
        ("assistant", "```python\nprint(14 + 27)\n```"),
    ],
)
def test_an_agent_that_owes_a_program_and_ran_none_gives_no_answer(
    role: Literal["system", "assistant"], told: str
) -> None:
    lacking = none_beside_12("it has no program that could be run")
    case = replace(make_case("Vera has 12."), own_solution="3 * 4 = 12", tool_result=None)
    asked = replace(case, messages=(Message(role=role, content=told),))
    assert beside_own(asked) == lacking
    # Its fence is not closed, so that nothing was run.
    cut = replace(case, messages=(), text="```python\nprint(3 * 4)\nVera has")
    assert beside_own(cut) == lacking
    # What another agent wrote was shown to it, and nothing of the kind asked.
    shown_to = replace(case, messages=(Message(role="user", content="```python\nprint(1)\n```"),))
    assert beside_own(shown_to) is None


def test_a_program_that_failed_is_said_to_have() -> None:
    failed = replace(make_tool_result(ToolStatus.NONZERO), stdout="")
    case = replace(make_case(), own_solution="3 * 4 = 12", tool_result=failed)
    assert beside_own(case) == none_beside_12("its program failed")
