"""Two passes that share a root read, and send back, what one pass over all of it does."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mappa_core.train.prefix_tree import ancestor_mask, build, root_of
from mappa_core.train.shared_root import OtherPassFailed, RootOfLayer, SharedRoot, shared
from mappa_core.train.tree_attention import attend
from mappa_core.train.tree_plans import Scores, parts

SHARED = tuple(range(70))
FIRST = [(*SHARED, 100 + i, *range(200, 240)) for i in (0, 0, 1)]
SECOND = [(*SHARED, 110 + i, *range(300, 302)) for i in (0, 1, 2)]
RESPONSES = [(7, 8, 9), (7, 9, 9, 9), (8, 8)]
SECONDS = 20
"""After which a wait that never ends is given up."""


def states(heads: int, nodes: int, width: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(heads)
    return torch.randn(1, heads, nodes, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("width", [8, 5])
def test_both_attend_as_one_tree_does_forward_and_backward(width: int) -> None:
    prompts = [*FIRST, *SECOND]
    whole = build(prompts, RESPONSES * 2)
    nodes = root_of(prompts)
    assert nodes == len(SHARED)
    giver, taker = build(FIRST, RESPONSES), build(SECOND, RESPONSES, nodes)
    assert giver.token_ids.tolist() + taker.token_ids.tolist() == whole.token_ids.tolist()
    assert giver.depths.tolist() + taker.depths.tolist() == whole.depths.tolist()

    exact = [states(6, whole.size), states(2, whole.size), states(2, whole.size, width)]
    given = [each.clone().requires_grad_() for each in exact]
    expected = scaled_dot_product_attention(
        *given, attn_mask=ancestor_mask(whole.ends), enable_gqa=True, scale=0.3
    )
    upstream = torch.randn(expected.shape, dtype=expected.dtype)
    expected.backward(upstream)

    root = SharedRoot(nodes)

    def one_pass(own: slice, ends: Tensor, *, takes: bool) -> tuple[Tensor, list[Tensor | None]]:
        mine = [each[:, :, own].clone().requires_grad_() for each in exact]
        layer = RootOfLayer(shared=root, layer=0, takes=takes)
        query, key, value = mine
        mixed = attend(query, key, value, parts(ends), Scores(scaling=0.3), root=layer)
        mixed.backward(upstream[:, :, own])
        return mixed.detach(), [each.grad for each in mine]

    with ThreadPoolExecutor(2) as threads:
        below = slice(giver.size, whole.size)
        second = threads.submit(one_pass, below, taker.ends, takes=True)
        first = threads.submit(one_pass, slice(giver.size), giver.ends, takes=False)
        (mixed, of_giver), (more, of_taker) = first.result(SECONDS), second.result(SECONDS)
    torch.testing.assert_close(torch.cat((mixed, more), dim=2), expected)
    for ours, others, each in zip(of_giver, of_taker, given, strict=True):
        assert ours is not None
        assert others is not None
        torch.testing.assert_close(torch.cat((ours, others), dim=2), each.grad)


def test_a_root_ends_before_what_predicts_a_response() -> None:
    assert root_of([]) == 0
    assert root_of([(1, 2, 3), (1, 2, 3)]) == 2
    assert root_of([(1, 2, 3, 4), (1, 2, 9), (1, 2, 3)]) == 2
    assert root_of([(1,), (1, 2)]) == 0
    tree = build([(1, 2, 3), (1, 2, 3)], [(5, 6), (5, 7)], 2)
    # 3 predicts 5, which predicts 6 and 7; 1 and 2 are another tree's.
    assert tree.token_ids.tolist() == [3, 5]
    assert tree.depths.tolist() == [2, 3]
    assert tree.ends.tolist() == [2, 2]
    assert tree.predictors.tolist() == [0, 1]


@pytest.mark.parametrize("takes", [True, False])
def test_a_pass_whose_other_fails_does_not_wait_for_it(takes: bool) -> None:
    root = SharedRoot(1)
    failed = threading.Event()

    def fails() -> None:
        failed.wait(SECONDS)
        with pytest.raises(ArithmeticError), shared(root):
            raise ArithmeticError

    def waits() -> None:
        failed.set()
        if takes:
            root.take(0)
        else:
            root.take_back(0)

    with ThreadPoolExecutor(2) as threads:
        other, waiting = threads.submit(fails), threads.submit(waits)
        with pytest.raises(OtherPassFailed):
            waiting.result(SECONDS)
        other.result(SECONDS)


def test_what_was_given_before_a_failure_is_still_taken() -> None:
    root, two = SharedRoot(1), (torch.zeros(1), torch.ones(1))
    root.give(3, two)
    with pytest.raises(ArithmeticError), shared(root):
        raise ArithmeticError
    assert root.take(3) is two
