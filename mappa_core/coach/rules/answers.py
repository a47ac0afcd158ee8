"""The rules for agents that plan, compute and answer: points in [0, 10] and what was seen.

    judge_plan      which of the story's quantities it names, the operation, how plainly
    judge_program   no program 0, unclosed 1, fails 3, prints nothing 3, prints words 4, prints a
                    number 5 (+ 1 for each of two quantities it computes with), the number that
                    the words imply 10
    judge_answer    no box 0, words in it 3, a number 4, what the program printed 6 or 7, the
                    number that the words imply 10
    judge_solver    as a program where it runs one, as an answer where it gives one

The evidence is what any reader has: the problem's words, what the agent wrote, what its program
printed. The expected answer is not part of a case. Where the words do not settle what the number
is, no action gets more than `UNSETTLED` points and the rationale says so.
"""

import re
from fractions import Fraction

from mappa_core.coach.rules.judgement import Judgement
from mappa_core.coach.rules.stories import Reading, read_story
from mappa_core.core.records.scores import CoachCase
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.core.text import clipped, last_boxed, last_program, opens_program, visible

UNSETTLED = 7.0
"""Most points where the words do not settle the number."""
QUOTED_CHARACTERS = 60

_PLAIN_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,9})?")
# An x is a sign between numbers only: every \\boxed{} has one.
_SIGNS = {
    "+": re.compile(r"\+"),
    "-": re.compile(r"-"),
    "*": re.compile(r"[*×]|\d *x *\d"),
    "/": re.compile(r"[/÷]"),
}
_CALCULATION = re.compile(r"(?<![\d.])\d{1,9}(?: *[-+*/x×] *\d{1,9})+(?![\d.])")
_PLAN_WORDS = 12


def judge_plan(case: CoachCase) -> Judgement:
    """Judge an action that says how to get the answer."""
    plan, reading = visible(case.text), read_story(case.statement)
    if not plan:
        return Judgement(points=0, observations=("it says nothing",))
    if reading is None:
        return _judge_unread_plan(case.statement, plan)
    named = set(reading.quantities) & _whole_numbers(plan)
    points = 4 * len(named) / len(set(reading.quantities))
    seen = [f"it names {len(named)} of the {len(set(reading.quantities))} quantities"]
    if _states(plan, reading):
        points, seen = points + 3, [*seen, "it states the calculation the words imply"]
    elif _SIGNS[reading.operation[0]].search(plan):
        points, seen = points + 1, [*seen, f"it uses {reading.operation[0]} but not rightly"]
    else:
        seen.append("it does not say the operation")
    plain = _is_plain(plan, reading)
    seen.append("it adds nothing else" if plain else "it adds words or numbers that are not needed")
    points += 3 * plain * _states(plan, reading)
    return Judgement(points=points, observations=tuple(seen))


def _judge_unread_plan(statement: str, plan: str) -> Judgement:
    shared = _whole_numbers(statement) & _whole_numbers(plan)
    return Judgement(
        points=min(2.0 + len(shared), UNSETTLED),
        observations=(
            f"it takes up {len(shared)} of the problem's numbers",
            "the words alone do not settle the calculation, so its truth is not judged",
        ),
    )


def judge_program(case: CoachCase) -> Judgement:
    """Judge an action that computes."""
    if last_program(case.text) is None and case.tool_result is None:
        opened = opens_program(case.text)
        what = "it opens a code block and never closes it" if opened else "it writes no program"
        return Judgement(points=float(opened), observations=(what,))
    result = case.tool_result
    if result is None or result.status is not ToolStatus.OK:
        return Judgement(points=3, observations=(_failure(result),))
    printed = result.stdout.strip()
    if not printed:
        return Judgement(points=3, observations=("its program runs and prints nothing",))
    seen = f"its program runs and prints {_quoted(printed)}"
    if _as_number(printed) is None:
        return Judgement(points=4, observations=(seen, "that is not one number"))
    return _judge_printed(seen, _as_number(printed), result.code, read_story(case.statement))


def _judge_printed(
    seen: str, number: Fraction | None, code: str, reading: Reading | None
) -> Judgement:
    if reading is None:
        unsettled = "the words alone do not settle the number"
        return Judgement(points=UNSETTLED, observations=(seen, unsettled))
    if number == reading.value:
        return Judgement(points=10, observations=(seen, "that is what the words imply"))
    used = len(set(reading.quantities) & _whole_numbers(code))
    return Judgement(
        points=5.0 + min(used, 2),
        observations=(
            seen,
            "that is not what the words imply",
            f"it computes with {used} of the {len(set(reading.quantities))} quantities",
        ),
    )


def judge_answer(case: CoachCase) -> Judgement:
    """Judge an action that says what the answer is."""
    boxed, reading = last_boxed(case.text), read_story(case.statement)
    if not boxed:
        return Judgement(points=0, observations=("it boxes no answer",))
    seen, number = f"it boxes {_quoted(boxed)}", _as_number(boxed)
    if number is None:
        return Judgement(points=3, observations=(seen, "that is not one number"))
    if reading is not None and number == reading.value:
        return Judgement(points=10, observations=(seen, "that is what the words imply"))
    copied = number == _last_printed(case)
    source = "as the program printed" if copied else "which no program printed"
    if reading is None:
        return Judgement(
            points=UNSETTLED if copied else 4,
            observations=(seen, source, "the words alone do not settle the number"),
        )
    return Judgement(
        points=6 if copied else 4,
        observations=(seen, source, "that is not what the words imply"),
    )


def judge_solver(case: CoachCase) -> Judgement:
    """Judge an agent that may run a program, call a tool or answer: by what it did."""
    acts = case.tool_result is not None or last_program(case.text) is not None
    return judge_program(case) if acts and not last_boxed(case.text) else judge_answer(case)


def _states(plan: str, reading: Reading) -> bool:
    return any(_is_the_calculation(found[0], reading) for found in _CALCULATION.finditer(plan))


def _is_the_calculation(calculation: str, reading: Reading) -> bool:
    numbers = [int(text) for text in re.findall(r"\d+", calculation)]
    signs = re.sub(r"[\d ]", "", calculation).replace("x", "*").replace("×", "*")
    if signs != reading.operation:
        return False
    if set(signs) <= {"*"} or set(signs) <= {"+"}:
        return sorted(numbers) == sorted(reading.quantities)
    return numbers == list(reading.quantities)


def _is_plain(plan: str, reading: Reading) -> bool:
    needed = {*reading.quantities, reading.value}
    return len(plan.split()) <= _PLAN_WORDS and _whole_numbers(plan) <= needed


def _whole_numbers(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"(?<!\d)\d{1,9}(?!\d)", text)}


def _as_number(text: str) -> Fraction | None:
    stripped = text.strip().strip("$").strip().replace(",", "")
    return Fraction(stripped) if _PLAIN_NUMBER.fullmatch(stripped) else None


def _last_printed(case: CoachCase) -> Fraction | None:
    results = [turn.tool_result for turn in case.earlier if turn.tool_result is not None]
    return _as_number(results[-1].stdout) if results else None


def _failure(result: ToolResult | None) -> str:
    if result is None:
        return "it writes a program that was not run"
    last = result.stderr.strip().splitlines()[-1:] or [""]
    said = f", saying {_quoted(last[0])}" if last[0] else ""
    return f"its program fails ({result.status.value}){said}"


def _quoted(text: str) -> str:
    return f"{clipped(text, QUOTED_CHARACTERS)!r}"
