"""Ids and seeds are functions of content: equal where it is equal, different where it differs."""

from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mappa_core.core import ids

PARTS = st.lists(st.text(st.characters(), max_size=6) | st.integers(), max_size=4)
RUN, PROBLEM = UUID(int=1), UUID(int=2)


def as_text(parts: list[str | int]) -> list[str]:
    return [str(part) for part in parts]


@given(st.text(max_size=4), PARTS, st.text(max_size=4), PARTS)
def test_ids_are_equal_exactly_where_kind_and_parts_are(
    kind: str, parts: list[str | int], other_kind: str, others: list[str | int]
) -> None:
    same = (kind, as_text(parts)) == (other_kind, as_text(others))
    assert (ids.content_id(kind, *parts) == ids.content_id(other_kind, *others)) == same


@given(st.text(st.characters(), min_size=1, max_size=8), st.data())
def test_where_a_text_is_cut_matters(text: str, data: st.DataObject) -> None:
    at, other = (data.draw(st.integers(0, len(text))) for _ in range(2))
    assume(at != other)
    cut, moved = ((text[:place], text[place:]) for place in (at, other))
    assert ids.content_id("x", *cut) != ids.content_id("x", *moved)
    assert ids.derive_seed(*cut) != ids.derive_seed(*moved)


def test_where_a_tuple_ends_matters() -> None:
    nested = [("a", "b"), (("a", "b"),), (("a",), "b"), ("a", ("b",)), ("a", "b", ())]
    assert len({ids.content_id("x", *parts) for parts in nested}) == len(nested)


def test_text_that_looks_like_the_separator_is_no_separator() -> None:
    assert ids.content_id("x", "a;1:b") != ids.content_id("x", "a", "b")
    assert ids.content_id("x", "") != ids.content_id("x")


def test_ids_do_not_change_between_versions_of_this_code() -> None:
    # What is stored under these ids must be found again.
    assert ids.problem_id("What is 2 + 3?") == UUID("f347d608-c8f3-5004-8612-3264b996a066")
    assert ids.episode_id(RUN, "train", 1, PROBLEM, 0) == UUID(
        "8e7f2694-a485-520b-bf1c-0f766fe213ac"
    )
    assert ids.derive_seed(1, "train") == 1511268827
    assert ids.content_id("x", "a", 1, RUN, None, ("b", (2,), ())) == UUID(
        "87e23aee-c87a-541f-a9f0-0cbb0e020b2e"
    )


@pytest.mark.parametrize("part", [0.5, b"a", ["a"], {"a": 1}, RuntimeError("a")])
def test_what_has_no_canonical_text_is_refused(part: object) -> None:
    with pytest.raises(TypeError, match="no part of an id"):
        ids.content_id("x", part)


def test_a_problem_is_its_words() -> None:
    assert ids.problem_id(" What  is\n2 + 3? ") == ids.problem_id("what is 2 + 3?")
    assert ids.problem_id("What is 2 + 3?") != ids.problem_id("What is 3 + 2?")


def test_every_part_of_an_episode_counts() -> None:
    episodes = {
        ids.episode_id(run, phase, iteration, problem, rollout)
        for run in (RUN, PROBLEM)
        for phase in ("train", "held_out")
        for iteration in (1, 11)
        for problem in (RUN, PROBLEM)
        for rollout in (1, 11)
    }
    assert len(episodes) == 32


def test_kinds_keep_equal_parts_apart() -> None:
    assert ids.policy_version_id(RUN, "solver", 1) != ids.update_id(RUN, "solver", 1)


@given(PARTS)
def test_seeds_are_31_bit_and_repeatable(parts: list[str | int]) -> None:
    seed = ids.derive_seed(*parts)
    assert 0 <= seed < 2**31
    assert seed == ids.derive_seed(*parts)


def test_seeds_spread() -> None:
    assert len({ids.derive_seed(1, "order", epoch) for epoch in range(1000)}) == 1000
