import pytest
import torch

from mappa_core.train import token_logprobs as module
from mappa_core.train.token_logprobs import capped_logprobs, token_logprobs

ROWS = torch.tensor([0, 0, 2, 1, 2])
TOKENS = torch.tensor([3, 4, 0, 10, 0])


def tensors(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 5, generator=generator).requires_grad_()
    return hidden, torch.randn(11, 5, generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_values_and_gradients_are_those_of_log_softmax(temperature: float) -> None:
    hidden, weight = tensors()
    upstream = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.25])
    expected = (hidden @ weight.T / temperature).log_softmax(-1)[ROWS, TOKENS]
    actual = token_logprobs(hidden, weight, ROWS, TOKENS, temperature).logprobs
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual, hidden, upstream),
        torch.autograd.grad(expected, hidden, upstream),
    )


@pytest.fixture(params=[(1024, 2048), (2, 4)])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, and so small that every test has several."""
    for name, size in zip(("BLOCK_ROWS", "BLOCK_COLUMNS"), request.param, strict=True):
        monkeypatch.setattr(module, name, size)


@pytest.mark.parametrize("extra", [0, module.ROWS])
def test_a_trained_output_embedding_gets_its_gradient(extra: int) -> None:
    hidden, weight = tensors(3 + extra)
    weight.requires_grad_()
    upstream = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.25])
    expected = (hidden @ weight.T).log_softmax(-1)[ROWS, TOKENS]
    actual = token_logprobs(hidden, weight, ROWS, TOKENS).logprobs
    for ours, theirs in zip(
        torch.autograd.grad(actual, (hidden, weight), upstream),
        torch.autograd.grad(expected, (hidden, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_entropy_is_that_of_the_row(temperature: float) -> None:
    hidden, weight = tensors()
    result = token_logprobs(hidden, weight, ROWS, TOKENS, temperature)
    logits = hidden @ weight.T / temperature
    expected = torch.distributions.Categorical(logits=logits).entropy()[ROWS]
    assert result.entropies is not None
    assert not result.entropies.requires_grad
    torch.testing.assert_close(result.entropies, expected.detach())


def test_without_a_gradient_the_values_are_the_same() -> None:
    hidden, weight = tensors()
    with_gradient = token_logprobs(hidden, weight, ROWS, TOKENS).logprobs
    with torch.no_grad():
        plain = token_logprobs(hidden, weight, ROWS, TOKENS)
    assert torch.equal(plain.logprobs, with_gradient)
    assert plain.entropies is None


def test_gradients_repeat_to_the_bit_on_several_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 512, generator=generator).requires_grad_()
    weight = torch.randn(64, 512, generator=generator).requires_grad_()
    rows = torch.randint(300, (1200,), generator=generator)
    upstream = torch.randn(1200, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = {
            b"".join(one.numpy().tobytes() for one in torch.autograd.grad(read, inputs, upstream))
            for inputs in [(hidden, weight)]
            for read in (
                token_logprobs(hidden, weight, rows, rows % 64).logprobs for _ in range(20)
            )
        }
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1


def test_chunks_do_not_show() -> None:
    hidden, weight = tensors(module.ROWS + 3)
    rows = torch.arange(len(hidden))
    tokens = rows % 11
    expected = (hidden @ weight.T).log_softmax(-1)[rows, tokens]
    torch.testing.assert_close(token_logprobs(hidden, weight, rows, tokens).logprobs, expected)


def test_a_uniform_row_by_hand() -> None:
    hidden = torch.zeros(1, 5, requires_grad=True)
    result = token_logprobs(hidden, torch.ones(8, 5), torch.tensor([0]), torch.tensor([2]))
    assert result.logprobs.item() == pytest.approx(-2.0794415)  # -ln 8
    assert result.entropies is not None
    assert result.entropies.item() == pytest.approx(2.0794415)


@pytest.mark.parametrize("rows", [3, module.ROWS + 3])
def test_capped_logits_are_those_of_log_softmax(rows: int) -> None:
    hidden, weight = tensors(rows)
    weight.requires_grad_()
    picked, tokens = torch.arange(rows + 2) % rows, torch.arange(rows + 2) % 11

    def logits_of(states: torch.Tensor) -> torch.Tensor:
        return 2 * torch.tanh(states @ weight.T / 2)

    whole = logits_of(hidden).log_softmax(-1)
    expected = whole[picked, tokens]
    actual = capped_logprobs(logits_of, hidden, picked, tokens)
    torch.testing.assert_close(actual.logprobs, expected)
    assert actual.entropies is not None
    entropy = torch.distributions.Categorical(logits=whole).entropy()[picked]
    torch.testing.assert_close(actual.entropies, entropy.detach())
    upstream = torch.linspace(-1, 1, rows + 2)
    for ours, theirs in zip(
        torch.autograd.grad(actual.logprobs, (hidden, weight), upstream),
        torch.autograd.grad(expected, (hidden, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        assert capped_logprobs(logits_of, hidden, picked, tokens).entropies is None


def test_only_the_gradient_is_rounded_by_products_in_bfloat16() -> None:
    hidden, weight = tensors()
    weight.requires_grad_()
    upstream = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.25])
    exact = token_logprobs(hidden, weight, ROWS, TOKENS)
    near = token_logprobs(hidden, weight, ROWS, TOKENS, products=torch.bfloat16)
    assert near.entropies is not None
    torch.testing.assert_close(near.entropies, exact.entropies, atol=0.02, rtol=0)
    assert near.logprobs.equal(exact.logprobs)
    for ours, theirs in zip(
        torch.autograd.grad(near.logprobs, (hidden, weight), upstream),
        torch.autograd.grad(exact.logprobs, (hidden, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.02)
