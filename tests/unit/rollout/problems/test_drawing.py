"""Which problems an iteration plays."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core.core.errors import ConfigError
from mappa_core.rollout.problems.drawing import problems_of_iteration
from tests.builders import make_problem

PROBLEMS = [make_problem(f"What is 2 + {index}?") for index in range(10)]


def played(seed: int, iterations: int, count: int) -> list[str]:
    return [
        problem.statement
        for iteration in range(1, iterations + 1)
        for problem in problems_of_iteration(PROBLEMS, iteration, count, seed)
    ]


@given(st.integers(0, 2**31 - 1), st.integers(1, 10))
def test_each_pass_and_each_iteration_sees_a_problem_once(seed: int, count: int) -> None:
    iterations = 50 // count + 1
    statements = played(seed, iterations, count)
    assert len(statements) == iterations * count
    for size in (10, count):
        for start in range(0, len(statements) - size + 1, size):
            assert len(set(statements[start : start + size])) == size


def test_a_problem_that_comes_again_within_an_iteration_changes_places_with_a_later_one() -> None:
    # The second pass is 5 4 1 8 9 6 7 0 3 2 as it is drawn; the third iteration has the 4 already.
    numbers = [int(statement[len("What is 2 + ") : -1]) for statement in played(1, 5, 4)]
    assert numbers == [5, 3, 7, 6, 9, 0, 2, 1, 4, 8, 5, 1, 4, 8, 9, 6, 7, 0, 3, 2]


def test_more_problems_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match=r"rollout.problems=11, and there are 10 to train on"):
        problems_of_iteration(PROBLEMS, 1, 11, 1)


def test_passes_differ_in_order_and_so_do_seeds() -> None:
    statements = played(1, 4, 10)
    passes = {tuple(statements[start : start + 10]) for start in range(0, 40, 10)}
    assert len(passes) == 4
    assert played(1, 1, 10) != played(2, 1, 10)
    assert played(1, 3, 4) == played(1, 3, 4)


def test_an_iteration_does_not_depend_on_those_before_it() -> None:
    # A resumed run starts in the middle.
    assert [one.statement for one in problems_of_iteration(PROBLEMS, 3, 4, 1)] == played(1, 3, 4)[
        8:
    ]


def kinds_of(sizes: tuple[int, ...], iteration: int, count: int, seed: int) -> Counter[str]:
    """How many of each kind an iteration has, of problems of several kinds in one after another."""
    problems = [
        make_problem(f"What is {kind} + {index}?", task_type=f"kind {kind}")
        for kind, size in enumerate(sizes)
        for index in range(size)
    ]
    drawn = problems_of_iteration(problems, iteration, count, seed, "stratified")
    assert len(set(drawn)) == count
    return Counter(problem.task_type for problem in drawn)


@pytest.mark.parametrize("seed", range(20))
def test_a_stratified_draw_plays_two_of_each_of_two_kinds(seed: int) -> None:
    # Left to chance, 23 of these 200 iterations have four of one kind and none of the other.
    for iteration in range(1, 11):
        assert kinds_of((20, 20), iteration, 4, seed) == {"kind 0": 2, "kind 1": 2}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4).map(tuple),
    st.integers(1, 12),
    st.integers(0, 99),
    st.data(),
)
def test_a_stratified_draw_follows_the_shares(
    sizes: tuple[int, ...], iteration: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, sum(sizes)))
    found = kinds_of(sizes, iteration, count, seed)
    for kind, size in enumerate(sizes):
        assert abs(found[f"kind {kind}"] - count * size / sum(sizes)) <= 2
