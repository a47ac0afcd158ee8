import pytest
import torch
from torch import Tensor
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mappa_core.train.learners.rms_norm import fuse_norms, rms_norm


def test_worked_by_hand() -> None:
    # The mean square of (3, 4, 0, 0) is 6.25, whose root is 2.5.
    states, weight = torch.tensor([[3.0, 4.0, 0.0, 0.0]]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = torch.tensor([[1.2, 3.2, 0.0, 0.0]])
    torch.testing.assert_close(rms_norm(states, weight, 0.0), expected)


def test_gradients_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    states, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((2, 5, 7), (7,))
    )

    def normed(states: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(states, weight, 0.1)

    assert torch.autograd.gradcheck(normed, (states, weight))


@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm])
def test_a_models_own_norm_is_computed_as_before_and_only_where_it_is_this_one(
    kind: type[torch.nn.Module],
) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = kind(16, eps=1e-3)
    with torch.no_grad():
        # Gemma multiplies by 1 + w.
        norm.weight.copy_(torch.randn(16, generator=generator))
    states = torch.randn(3, 16, generator=generator) * 0.05
    before = norm(states)
    fuse_norms(torch.nn.ModuleList([norm]))
    torch.testing.assert_close(norm(states), before)
    fused = norm(states.requires_grad_()).grad_fn
    assert ("RmsNorm" in type(fused).__name__) == (kind is LlamaRMSNorm)
    # What a layer gives in bfloat16 is normed as the model does.
    assert "RmsNorm" not in type(norm(states.bfloat16()).grad_fn).__name__
