import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mappa_core.train.prefix_tree import ancestor_mask, build
from mappa_core.train.tree_attention import AttentionPlan, BlockPlan, ChainPlan, attend, plan

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
    mixed = attend(query, key, value, planned, 0.3, copied)
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
