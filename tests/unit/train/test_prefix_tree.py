from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.train.prefix_tree import (
    ancestor_mask,
    build,
    evenly,
    micro_batches,
    padded_micro_batches,
    root_of,
    unfold,
)

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple)
PAIRS = st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=12)


def test_by_hand() -> None:
    tree = build([(1, 2), (1, 2), (1,)], [(3, 7, 9), (3, 8, 9), (4, 9)])
    #  1 ┬ 2 ─ 3 ┬ 7
    #    │       └ 8
    #    └ 4
    assert tree.token_ids.tolist() == [1, 2, 3, 7, 8, 4]
    assert tree.depths.tolist() == [0, 1, 2, 3, 3, 1]
    assert tree.ends.tolist() == [6, 5, 5, 4, 5, 6]
    # 2 predicts 3; 3 predicts 7 and 8; 7, 8 and 4 predict 9; 1 predicts 4
    assert tree.predictors.tolist() == [0, 1, 2, 3, 4, 5]
    pairs = list(zip(tree.edge_predictors.tolist(), tree.edge_tokens.tolist(), strict=True))
    assert [pairs[i] for i in tree.reads.tolist()] == [
        *[(1, 3), (2, 7), (3, 9)],
        *[(1, 3), (2, 8), (4, 9)],
        *[(0, 4), (5, 9)],
    ]


def test_mask_by_hand() -> None:
    mask = ancestor_mask(torch.tensor([4, 3, 3, 4]))  # 0 ┬ 1 ─ 2 and 0 ─ 3
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]


@given(PAIRS)
def test_every_response_token_is_read_after_its_own_prefix(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    tree = build([p for p, _ in pairs], [r for _, r in pairs])
    mask = ancestor_mask(tree.ends)
    reads = iter(tree.reads.tolist())
    for prompt, response in pairs:
        for position, token in enumerate(response):
            edge = next(reads)
            assert tree.edge_tokens[edge].item() == token
            node = tree.predictors[tree.edge_predictors[edge]]
            seen = tree.token_ids[mask[node]].tolist()
            assert seen == [*prompt, *response[:position]]
            assert tree.depths[mask[node]].tolist() == list(range(len(seen)))


@given(PAIRS)
def test_no_prefix_is_held_twice(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    tree = build([p for p, _ in pairs], [r for _, r in pairs])
    inputs = [p + r[:-1] for p, r in pairs]
    assert tree.size == len({row[: i + 1] for row in inputs for i in range(len(row))})


@given(PAIRS, st.integers(1, 20))
def test_micro_batches_hold_each_sequence_once_and_the_budget(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], budget: int
) -> None:
    prompts, responses = [p for p, _ in pairs], [r for _, r in pairs]
    parts = micro_batches(prompts, responses, budget)
    assert sorted(i for part in parts for i in part) == list(range(len(pairs)))
    for part in parts:
        tree = build([prompts[i] for i in part], [responses[i] for i in part])
        longest = max(len(prompts[i]) + len(responses[i]) - 1 for i in part)
        assert tree.size <= max(budget, longest)


@given(PAIRS, st.integers(1, 20))
def test_the_second_of_two_parts_leaves_the_root_to_the_first(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], budget: int
) -> None:
    prompts, responses = [(9, 9, *p) for p, _ in pairs], [r for _, r in pairs]
    root = root_of(prompts)
    assert root >= 2
    parts = micro_batches(prompts, responses, budget, root)
    assert sorted(i for part in parts for i in part) == list(range(len(pairs)))
    for number, part in enumerate(parts):
        above = root if number % 2 else 0
        tree = build([prompts[i] for i in part], [responses[i] for i in part], above)
        longest = max(len(prompts[i]) + len(responses[i]) - 1 for i in part)
        assert tree.size <= max(budget, longest - above)


@given(PAIRS, st.integers(1, 60), st.sampled_from([micro_batches, padded_micro_batches]))
def test_parts_for_two_are_even_in_number_and_no_larger(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]],
    budget: int,
    cut: Callable[..., list[list[int]]],
) -> None:
    prompts, responses = [p for p, _ in pairs], [r for _, r in pairs]
    whole = cut(prompts, responses, budget)
    parts = evenly(lambda tokens: cut(prompts, responses, tokens), budget, 2)
    assert sorted(i for part in parts for i in part) == list(range(len(pairs)))
    assert len(whole) <= len(parts) <= 2 * -(-len(whole) // 2)
    assert evenly(lambda tokens: cut(prompts, responses, tokens), budget, 1) == whole


def test_parts_for_two_are_of_one_size() -> None:
    prompts, responses = [(i,) * 4 for i in range(6)], [(1, 2)] * 6
    # Five nodes each: 24 hold four of them, which would leave two for the second pass.
    assert [len(part) for part in micro_batches(prompts, responses, 24)] == [4, 2]
    parts = evenly(lambda tokens: micro_batches(prompts, responses, tokens), 24, 2)
    assert [len(part) for part in parts] == [3, 3]


def test_relatives_stay_together() -> None:
    prompts = [(1, 1, 1), (2, 2, 2), (1, 1, 1), (2, 2, 2)]
    parts = micro_batches(prompts, [(5, 0), (5, 0), (6, 0), (6, 0)], 5)
    assert parts == [[0, 2], [1, 3]]


@pytest.mark.parametrize(("prompt", "response"), [((), (1,)), ((1,), ())])
def test_nothing_to_read_is_refused(prompt: tuple[int, ...], response: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        build([prompt], [response])


def test_unfolded_by_hand() -> None:
    rows = unfold(build([(1, 2), (1, 2), (1,)], [(3, 7, 9), (3, 8, 9), (4, 9)]))
    assert rows.token_ids.tolist() == [[1, 2, 3, 7], [1, 2, 3, 8], [1, 4, 0, 0]]
    assert rows.real.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert rows.rows.tolist() == [0, 0, 0, 0, 1, 2]
    assert rows.columns.tolist() == [0, 1, 2, 3, 3, 1]


@given(PAIRS)
def test_every_node_stands_after_its_own_prefix(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    tree = build([p for p, _ in pairs], [r for _, r in pairs])
    rows, mask = unfold(tree), ancestor_mask(tree.ends)
    for node in range(tree.size):
        row, column = int(rows.rows[node]), int(rows.columns[node])
        assert rows.token_ids[row, : column + 1].tolist() == tree.token_ids[mask[node]].tolist()
        assert rows.real[row, : column + 1].all()


@given(PAIRS, st.integers(1, 20))
def test_padded_micro_batches_hold_each_sequence_once_and_the_budget(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], budget: int
) -> None:
    prompts, responses = [p for p, _ in pairs], [r for _, r in pairs]
    parts = padded_micro_batches(prompts, responses, budget)
    assert sorted(i for part in parts for i in part) == list(range(len(pairs)))
    for part in parts:
        tree = build([prompts[i] for i in part], [responses[i] for i in part])
        assert len(part) == 1 or unfold(tree).token_ids.numel() <= budget
