"""The prefix tree against transformers' own forward pass, sequence by sequence."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from mappa_core.core.errors import LearnerError
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.batches import micro_batched
from mappa_core.train.clipped_objective import loss_of
from mappa_core.train.config import AlgorithmConfig, LearnerConfig, LoraConfig, MismatchConfig
from mappa_core.train.learners import model
from mappa_core.train.learners.reading import Reading
from mappa_core.train.learners.self_check import choose_reading
from mappa_core.train.metrics import Tally
from mappa_core.train.prefix_tree import build
from tests.integration.train.learner.samples import actions, samples
from tests.tiny_model import save_adapter

CONFIG = LearnerConfig(device="cpu", dtype="float32", lora=LoraConfig(rank=8, alpha=16))
FROM_SAMPLER = AlgorithmConfig(loss_over="samples", mismatch=MismatchConfig(importance="none"))
ADVANTAGES = [1.0, -0.5, 0.0, 2.0, -1.0, 0.25, 0.0, 1.5, -2.0, 0.75, -0.25, 0.5]


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tiny_model, tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def plain(tiny_model: Path, adapter: Path) -> PeftModel:
    """Transformers' causal attention, adapter loaded and trainable."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(adapter), is_trainable=True)


@pytest.fixture(scope="module", params=[True, False], ids=["fused", "layers"])
def treed(tiny_model: Path, plain: PeftModel, request: pytest.FixtureRequest) -> model.Trainee:
    """The learner's model with the same adapter."""
    loaded = model.load(tiny_model, CONFIG, fused=request.param)
    model.copy_tensors(loaded, model.tensors(plain))
    return loaded


@pytest.fixture(scope="module")
def reading(treed: model.Trainee) -> Reading:
    return choose_reading(model.inner(treed), CONFIG)


def one_by_one(plain: PeftModel, action: ScoredAction | TrainingSample) -> Tensor:
    """Log-probabilities of the action's tokens by the textbook; (T,)."""
    ids = torch.tensor([[*action.prompt_token_ids, *action.token_ids]])
    logits = plain(input_ids=ids).logits[0, len(action.prompt_token_ids) - 1 : -1]
    logprobs = (logits / action.temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(action.token_ids)[:, None])[:, 0]


def gradients(of: model.Trainee) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.trained_parameters(of).items()}
    of.zero_grad()
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def textbook_gradients(
    plain: PeftModel, batch: Sequence[TrainingSample], clip: float
) -> dict[str, Tensor]:
    """Of the mean over samples of the mean over tokens, computed sequence by sequence."""
    loss = torch.zeros(())
    for sample in batch:
        ratio = (one_by_one(plain, sample) - torch.tensor(sample.old_logprobs)).exp()
        advantage = sample.advantages[0]
        held = ratio.clamp(1 - clip, 1 + clip)
        loss = loss - torch.minimum(ratio * advantage, held * advantage).mean() / len(batch)
    loss.backward()
    return gradients(plain)


def backward(
    reading: Reading,
    batch: Sequence[TrainingSample],
    algorithm: AlgorithmConfig,
    budget_tokens: int,
) -> Tally:
    tally = Tally()
    cut = replace(reading, budget_tokens=budget_tokens).cut
    for part in micro_batched(batch, algorithm, cut):
        step = loss_of(part, reading.read(part.tree, part.temperature), algorithm)
        step.loss.backward()
        tally.add(part, step)
    return tally


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_tree_reads_what_the_plain_forward_reads(
    plain: PeftModel, reading: Reading, temperature: float
) -> None:
    given = [replace(one, temperature=temperature) for one in actions()]
    tree = build([a.prompt_token_ids for a in given], [a.token_ids for a in given])
    with torch.no_grad():
        expected = torch.cat([one_by_one(plain, action) for action in given])
        actual = reading.read(tree, temperature).logprobs
    assert tree.size < sum(len(a.prompt_token_ids) for a in given)
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(
    ("micro_batch_tokens", "temperature"),
    [(1, 1.0), (24, 1.0), (40, 1.0), (4096, 1.0), (40, 0.7), (40, 1.3)],
)
def test_gradients_are_those_of_separate_sequences_however_they_are_cut(
    plain: PeftModel,
    treed: model.Trainee,
    reading: Reading,
    micro_batch_tokens: int,
    temperature: float,
) -> None:
    given = [replace(one, temperature=temperature) for one in actions()]
    with torch.no_grad():
        # Old log-probs a little off, so that some ratios are clipped.
        shifts = [0.3, -0.3] * 6
        old = [
            tuple((one_by_one(plain, one) + shift).tolist())
            for one, shift in zip(given, shifts, strict=True)
        ]
    batch = samples(given, old, ADVANTAGES)
    expected = textbook_gradients(plain, batch, 0.2)

    tally = backward(reading, batch, FROM_SAMPLER, micro_batch_tokens)
    actual = gradients(treed)

    assert 0 < tally.means()["clip_fraction"] < 1
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-6, rtol=1e-4)


def test_kl_loss_needs_its_reference_and_pulls(reading: Reading) -> None:
    algorithm = AlgorithmConfig(kl="k2_loss", kl_coefficient=1.0)
    given = actions(4)
    batch = samples(given, [a.logprobs for a in given], [0.0] * 4)
    with pytest.raises(ValueError, match="k2_loss"):
        backward(reading, batch, algorithm, 4096)


def padded(
    plain: PeftModel, batch: Sequence[TrainingSample], clip: float, size: int
) -> dict[str, Tensor]:
    """The same gradients from transformers' own padded micro-batches of `size` sequences."""
    for part in (batch[i : i + size] for i in range(0, len(batch), size)):
        rows = [(*sample.prompt_token_ids, *sample.token_ids) for sample in part]
        longest = max(map(len, rows))
        ids = torch.tensor([(*row, *(0,) * (longest - len(row))) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        logprobs = plain(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)
        for row, sample in zip(logprobs, part, strict=True):
            start, tokens = len(sample.prompt_token_ids) - 1, torch.tensor(sample.token_ids)
            own = row[start : start + len(tokens)].gather(1, tokens[:, None])[:, 0]
            ratio = (own - torch.tensor(sample.old_logprobs)).exp()
            advantage = sample.advantages[0]
            held = ratio.clamp(1 - clip, 1 + clip)
            loss = -torch.minimum(ratio * advantage, held * advantage).mean() / len(batch)
            loss.backward(retain_graph=True)
    return gradients(plain)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_packed_gradients_are_those_of_padded_micro_batches(
    plain: PeftModel, treed: model.Trainee, reading: Reading, size: int
) -> None:
    given = actions()
    batch = samples(given, [(-5.0,) * len(one.token_ids) for one in given], ADVANTAGES)
    expected = padded(plain, batch, 0.2, size)
    backward(reading, batch, FROM_SAMPLER, 40)
    for name, gradient in gradients(treed).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_what_is_loaded_computes_in_few_operations(tiny_model: Path, weights: str) -> None:
    config = CONFIG.model_copy(update={"weights": weights})
    layer = model.inner(model.load(tiny_model, config, fused=True)).get_decoder().layers[0]
    states = torch.randn(3, 64, requires_grad=True)
    assert "RmsNorm" in type(layer.input_layernorm(states).grad_fn).__name__
    assert ("Gated" in type(layer.mlp(states).grad_fn).__name__) == (weights == "lora")


def test_a_damaged_base_model_is_named(tiny_model: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(tiny_model, tmp_path / "base")
    os.truncate(damaged / "model.safetensors", 1000)
    with pytest.raises(LearnerError, match=r"^cannot read the model at .*base is damaged"):
        model.load(damaged, LearnerConfig(device="cpu"), fused=True)
