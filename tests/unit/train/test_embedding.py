"""A tied embedding's gradient, summed in place, beside autograd's."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from mappa_core.train.learners.embedding import EmbeddingGradient, sum_gradients
from mappa_core.train.learners.families import tiny_config
from mappa_core.train.learners.head import decoder_of
from mappa_core.train.learners.passes import Passes
from mappa_core.train.token_logprobs import token_logprobs

PADDING = 3


def tied(**settings: object) -> LlamaForCausalLM:
    config = tiny_config("llama")
    config.update({"tie_word_embeddings": True, "pad_token_id": PADDING, **settings})
    torch.manual_seed(0)
    return cast(LlamaForCausalLM, AutoModelForCausalLM.from_config(config))


def sequences() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, 50, (length,), generator=generator) for length in (9, 6, 5, 4, 4, 2)]
    drawn[0][2:4] = PADDING
    return drawn


def gradients(
    model: PreTrainedModel, parts: Sequence[Tensor], *, threads: int, summed: bool
) -> dict[str, Tensor]:
    passes = Passes(model.parameters(), threads=threads, budget_tokens=12)
    taker = sum_gradients(model, passes) if summed else None
    assert (taker is not None) == summed
    weight = cast(Tensor, model.get_output_embeddings().weight)

    def work(tokens: Tensor) -> None:
        states = decoder_of(model)(input_ids=tokens[None, :-1]).last_hidden_state[0]
        rows = torch.arange(len(states))
        read = token_logprobs(states, weight, rows, tokens[1:], gradient=taker)
        (read.logprobs * torch.linspace(-1, 2, len(rows))).sum().backward()

    for parameter in model.parameters():
        parameter.grad = None
    passes.run(work, parts, len)
    if taker is not None:
        taker.finish()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_it_is_that_of_autograd_and_repeats_to_the_bit(threads: int) -> None:
    parts = sequences()
    expected = gradients(tied(), parts, threads=0, summed=False)
    found = [gradients(tied(), parts, threads=threads, summed=True) for _ in range(3)]
    assert expected.keys() == found[0].keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[0][name], gradient)
        assert all(torch.equal(again[name], found[0][name]) for again in found)


def test_values_stay_as_they_are_and_reading_takes_no_gradient() -> None:
    model, tokens = tied(), sequences()[0][None]
    before = model(input_ids=tokens).logits
    taker = sum_gradients(model, Passes((), threads=1, budget_tokens=1))
    assert taker is not None
    torch.testing.assert_close(model(input_ids=tokens).logits, before)
    with torch.no_grad():
        model(input_ids=tokens)
    taker.finish()
    assert model.get_input_embeddings().weight.grad is None


def frozen() -> PreTrainedModel:
    model = tied()
    model.requires_grad_(requires_grad=False)
    return model


def renormed() -> PreTrainedModel:
    model = tied()
    cast(Any, model.get_input_embeddings()).max_norm = 1.0
    return model


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: tied(tie_word_embeddings=False), id="an output layer of its own"),
        pytest.param(frozen, id="frozen"),
        pytest.param(renormed, id="changed by every look-up"),
        pytest.param(
            lambda: AutoModelForCausalLM.from_config(tiny_config("gemma3_text")), id="scaled rows"
        ),
    ],
)
def test_what_is_more_than_a_look_up_in_a_tied_layer_is_left_to_autograd(model: Any) -> None:
    assert sum_gradients(model(), Passes((), threads=1, budget_tokens=1)) is None


def test_blocks_are_added_in_the_passes_order() -> None:
    big = 1e8  # to which float32 cannot add 1
    weight = torch.nn.Parameter(torch.zeros(1, 1))
    passes = Passes([weight], threads=2, budget_tokens=20)
    taker = EmbeddingGradient(weight, passes)
    given = [big, 1.0, -big, 2.0]

    def work(value: float) -> None:
        if abs(value) == big:
            torch.randn(2000, 2000).sin()
        taker.add([(slice(0, 1), torch.full((1, 1), value))])
        taker.keep(torch.tensor([0]), torch.full((1, 1), value))

    for _ in range(5):
        weight.grad = None
        passes.run(work, given, lambda _: 10)
        assert weight.grad is not None
        # ((big + 1) - big) + 2; in any order that takes 1 after -big it is 3.
        assert float(weight.grad) == 2.0
        taker.finish()
        assert float(weight.grad) == 2.0, "which big has swallowed, and the same again"
