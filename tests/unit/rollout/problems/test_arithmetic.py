"""Generated problems are right, distinct, balanced, and the same every time.

Answers are recomputed here from the statement's words alone: numbers in reading order, and the
verbs of each template, written down independently of the generator.
"""

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems.arithmetic import KINDS, open_problems
from mappa_core.rollout.problems.base import FixedProblems

LEVELS = (1, 2, 3, 4)
COMES = re.compile(r"\b(buys|finds|gives)\b(?! away)")
GOES = re.compile(r"\b(gives away|loses|sells)\b")


def drawn(**settings: object) -> FixedProblems:
    return open_problems(ProblemsConfig(**settings), None)


def both(source: FixedProblems) -> tuple[Problem, ...]:
    return (*source.held_out(), *source.train())


def numbers(problem: Problem) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", problem.statement)]


def key(problem: Problem) -> tuple[str, frozenset[int]]:
    return problem.task_type, frozenset(numbers(problem))


def step_by_step(statement: str) -> int:
    """The story's numbers, each added or taken away as the last verb before it says."""
    places = list(re.finditer(r"\d+", statement))
    total = int(places[0][0])
    for before, place in pairwise(places):
        between = statement[before.end() : place.start()]
        comes, goes = bool(COMES.search(between)), bool(GOES.search(between))
        assert comes != goes, between
        total += int(place[0]) if comes else -int(place[0])
    return total


def recomputed(problem: Problem) -> int:
    first, second, *_ = numbers(problem)
    match problem.task_type:
        case "addition":
            return first + second
        case "subtraction":
            return first - second
        case "multiplication":
            return first * second
        case "division":
            assert first % second == 0
            return first // second
        case _:
            return step_by_step(problem.statement)


@pytest.mark.parametrize("level", LEVELS)
def test_every_answer_is_right_and_a_whole_number(level: int) -> None:
    for problem in both(drawn(levels=(level,), train_size=400)):
        assert problem.level == level
        assert problem.answer == str(recomputed(problem))
        assert int(problem.answer) >= 0


def test_every_template_is_told_and_leaves_nothing_to_fill_in() -> None:
    problems = both(drawn(levels=LEVELS, train_size=1200))
    for kind in KINDS:
        for template in kind.templates:
            words = re.escape(template)
            shape = re.compile(re.sub(r"\\\{(\w+)\\\}", r"\\w+", words))
            told = [problem for problem in problems if shape.fullmatch(problem.statement)]
            assert told, template
            assert kind.task_type in {problem.task_type for problem in told}
    assert not any("{" in problem.statement for problem in problems)


@given(st.integers(0, 2**31), st.sets(st.sampled_from(LEVELS), min_size=1))
def test_no_problem_occurs_twice_by_words_or_by_operation_and_numbers(
    seed: int, levels: set[int]
) -> None:
    problems = both(drawn(seed=seed, levels=tuple(sorted(levels)), train_size=150))
    assert len({problem.id for problem in problems}) == 64 + 150
    assert len({key(problem) for problem in problems}) == 64 + 150


def test_the_same_configuration_draws_the_same_problems() -> None:
    first, again, other = (drawn(seed=seed) for seed in (0, 0, 1))
    assert both(first) == both(again)
    assert both(first) != both(other)


def test_more_training_problems_do_not_change_what_is_held_out() -> None:
    few, many = drawn(train_size=10), drawn(train_size=300)
    assert few.held_out() == many.held_out()
    assert few.train() == many.train()[:10]


@pytest.mark.parametrize("levels", [(1,), (2,), (1, 2)])
def test_kinds_are_balanced_in_both_sets(levels: tuple[int, ...]) -> None:
    source = drawn(levels=levels, train_size=100)
    kinds = sum(kind.level in levels for kind in KINDS)
    for problems in (source.held_out(), source.train()):
        counts = Counter((problem.level, problem.task_type) for problem in problems)
        assert len(counts) == kinds
        assert max(counts.values()) - min(counts.values()) <= 1


def test_operations_narrow_what_is_drawn() -> None:
    problems = both(drawn(levels=(2,), operations=("division",), train_size=100))
    assert {problem.task_type for problem in problems} == {"division"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"levels": (5,)}, "leaves nothing for 5: levels are 1 to 4"),
        ({"levels": (1, 9)}, "leaves nothing for 9: levels are 1 to 4"),
        ({"operations": ("addition", "adition")}, "leaves nothing for adition: "),
        ({"levels": (1, 4), "operations": ("addition",)}, "leaves nothing for 4: "),
        ({"operations": ("division",)}, "leaves nothing for 1, division: "),
    ],
)
def test_a_level_or_operation_without_problems_is_refused(
    settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        drawn(**settings)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_asking_for_more_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^levels \[2\] hold about \d+ distinct problems: lower"):
        drawn(levels=(2,), operations=("division",), train_size=5000)
