import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mappa_core.train.prefix_tree import ancestor_mask, build
from mappa_core.train.tree_attention import attend
from mappa_core.train.tree_plans import (
    AttentionPlan,
    BlockPlan,
    ChainPlan,
    PartsPlan,
    Scores,
    TreePlans,
    parts,
    plan,
)

PROMPTS = [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 5), (6,)]
RESPONSES = [(7, 8, 9), (7, 9, 9, 9), (7, 8), (7, 8, 7)]


def states(heads: int, nodes: int) -> Tensor:
    generator = torch.Generator().manual_seed(heads)
    values = torch.randn(1, heads, nodes, 8, generator=generator, dtype=torch.float64)
    return values.requires_grad_()


def assert_dense(ends: Tensor, planned: AttentionPlan, copied: int = 2**26) -> None:
    """Forward and backward are those of dense attention under the ancestors' mask."""
    nodes = ends.numel()
    query, key, value = states(6, nodes), states(2, nodes), states(2, nodes)
    dense = scaled_dot_product_attention(
        query, key, value, attn_mask=ancestor_mask(ends), enable_gqa=True, scale=0.3
    )
    mixed = attend(query, key, value, planned, Scores(scaling=0.3), copied)
    torch.testing.assert_close(mixed, dense)
    upstream = torch.randn(dense.shape, dtype=dense.dtype)
    expected = torch.autograd.grad(dense, (query, key, value), upstream)
    actual = torch.autograd.grad(mixed, (query, key, value), upstream)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("copied", [1, 700, 2**26])
@pytest.mark.parametrize("block", [1, 3, 4, 64])
def test_blocks_are_dense_masked_attention_forward_and_backward(block: int, copied: int) -> None:
    ends = build(PROMPTS, RESPONSES).ends
    assert_dense(ends, plan(ends, block), copied)


@pytest.mark.parametrize("copied", [1, 700, 2**26])
@pytest.mark.parametrize("block", [1, 3, 64])
@pytest.mark.parametrize("long", [1, 2, 3, 64])
def test_parts_are_dense_masked_attention_forward_and_backward(
    long: int, block: int, copied: int
) -> None:
    ends = build(PROMPTS, RESPONSES).ends
    assert_dense(ends, parts(ends, long, block), copied)


def forest() -> Tensor:
    """Two prompts, one with problems and plans below it, another that shares nothing."""
    shared, alone = tuple(range(90)), tuple(range(500, 570))
    problems = [(*shared, 100 + i, *range(200, 230 + 9 * i)) for i in range(3)]
    prompts = [(*problem, 300 + j, 301) for problem in problems for j in range(4)]
    return build([*prompts, alone], [tuple(range(400, 420 + i)) for i in range(13)]).ends


def test_parts_of_a_real_size_are_dense_masked_attention() -> None:
    planned = parts(forest())
    assert planned.blocks is not None
    assert (planned.chains[0].start, planned.chains[0].end) == (0, 90)
    assert_dense(forest(), planned)


def test_every_ancestor_is_in_one_part() -> None:
    ends = forest()
    planned = parts(ends)
    read = torch.zeros(len(ends), len(ends), dtype=torch.int64)
    for chain in planned.chains:
        own = slice(chain.start, chain.end)
        read[own, own] += torch.ones_like(read[own, own]).tril()
        read[chain.end : chain.below, own] += 1
    assert planned.blocks is not None
    rows = planned.rows.tolist()
    for block, columns in enumerate(planned.blocks.columns):
        for query, attends in enumerate(planned.blocks.attends[block, 0]):
            at = block * planned.blocks.attends.shape[2] + query
            if at < len(rows):
                read[rows[at], columns[attends]] += 1
    assert read.equal(ancestor_mask(ends).long())


def test_parts_of_bfloat16_are_those_of_float32_rounded() -> None:
    ends = forest()
    near = [states(heads, len(ends)).detach().bfloat16().requires_grad_() for heads in (6, 2, 2)]
    exact = [each.detach().float().requires_grad_() for each in near]
    rounded = attend(near[0], near[1], near[2], parts(ends), Scores())
    rounded.float().square().sum().backward()
    assert rounded.dtype is torch.bfloat16
    whole = attend(exact[0], exact[1], exact[2], parts(ends), Scores())
    whole.square().sum().backward()
    torch.testing.assert_close(rounded.float(), whole, atol=0, rtol=2**-8)
    for ours, theirs in zip(near, exact, strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.float(), theirs.grad, atol=0.05, rtol=0.02)


def test_a_cpu_reads_by_parts_and_a_window_by_blocks() -> None:
    tree = build(PROMPTS, RESPONSES)
    plans = TreePlans(ends=tree.ends, depths=tree.depths)
    assert isinstance(plans.of(None, Scores()), PartsPlan)
    assert isinstance(plans.of(lambda query, key: key > query - 2, Scores()), BlockPlan)


@pytest.mark.parametrize("lengths", [(5,), (9, 2, 4), (1, 1, 1)])
def test_sequences_that_share_nothing_are_causal_each_on_its_own(lengths: tuple[int, ...]) -> None:
    prompts = [(number,) * length for number, length in enumerate(lengths)]
    ends = build(prompts, [(99,)] * len(lengths)).ends
    planned = plan(ends, 1)
    assert isinstance(planned, ChainPlan)
    assert [end - start for start, end in planned.spans] == list(lengths)
    assert_dense(ends, planned)


def test_many_short_sequences_are_blocks() -> None:
    ends = build([(number,) for number in range(9)], [(99,)] * 9).ends
    assert isinstance(plan(ends, 4), BlockPlan)


def test_a_block_reads_its_ancestors_only() -> None:
    ends = build(PROMPTS, RESPONSES).ends
    planned = plan(ends, 2)
    assert isinstance(planned, BlockPlan)
    assert planned.attends.shape[-1] < ends.numel()
    for block, attends in enumerate(planned.attends[:, 0]):
        rows = ancestor_mask(ends)[2 * block : 2 * block + 2]
        used = planned.columns[block][attends.any(0)]
        assert used.tolist() == rows.any(0).nonzero().flatten().tolist()


def dense(scores: Scores, mask: Tensor, states: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Capped products beside sinks, written out head by head."""
    query, key, value = states
    heads: list[Tensor] = []
    for head in range(query.shape[1]):
        products = query[0, head] @ key[0, head // 3].T * 8**-0.5
        if scores.softcap is not None:
            products = scores.softcap * torch.tanh(products / scores.softcap)
        weights = products.exp() * mask
        sink = 0.0 if scores.sinks is None else scores.sinks[head].exp()
        heads.append(weights / (weights.sum(-1, keepdim=True) + sink) @ value[0, head // 3])
    return torch.stack(heads)[None]


SINKS = torch.linspace(-1, 1, 6)


@pytest.mark.parametrize(
    "scores", [Scores(), Scores(softcap=0.5), Scores(sinks=SINKS), Scores(softcap=2, sinks=SINKS)]
)
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_caps_sinks_and_windows_are_those_written_out(scores: Scores, window: int | None) -> None:
    tree = build(PROMPTS, RESPONSES)
    given = states(6, tree.size), states(2, tree.size), states(2, tree.size)
    nearer = tree.depths[:, None] - tree.depths[None, :] < (window or 100)
    expected = dense(scores, ancestor_mask(tree.ends) & nearer, given)

    def sees(query: Tensor, key: Tensor) -> Tensor:
        return key > query - (window or 0)

    plans = TreePlans(ends=tree.ends, depths=tree.depths)
    planned = plans.of(None if window is None else sees, scores)
    actual = attend(*given, planned, scores)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)
    upstream = torch.randn(expected.shape, dtype=expected.dtype)
    ours = torch.autograd.grad(actual, given, upstream)
    for left, right in zip(ours, torch.autograd.grad(expected, given, upstream), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_a_window_wider_than_all_sequences_costs_nothing() -> None:
    tree = build(PROMPTS, RESPONSES)
    plans = TreePlans(ends=tree.ends, depths=tree.depths)
    assert plans.of(lambda query, key: key > query - 100, Scores()) is plans.of(None, Scores())


def test_values_may_be_narrower_than_keys() -> None:
    tree = build(PROMPTS, RESPONSES)
    query, key, value = states(6, tree.size), states(2, tree.size), states(2, tree.size)
    for planned in (plan(tree.ends, 4), parts(tree.ends, 2)):
        narrow = attend(query, key, value[..., :5], planned, Scores())
        torch.testing.assert_close(narrow, attend(query, key, value, planned, Scores())[..., :5])
