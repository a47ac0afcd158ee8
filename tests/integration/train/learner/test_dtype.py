"""Products in bfloat16 beside those in float32: the same tokens, the same weights."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer

from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.models.weights import load_base
from mappa_core.train.batches import micro_batched
from mappa_core.train.clipped_objective import loss_of
from mappa_core.train.config import AlgorithmConfig, LearnerConfig, LoraConfig
from mappa_core.train.learners import model
from mappa_core.train.learners.self_check import choose_reading
from mappa_core.train.learners.steps import read_rows
from tests.integration.train.learner.conftest import MakeLearner
from tests.integration.train.learner.samples import BASE, action, actions, samples

COSINE = 0.995
"""Of an update's gradient with the float32 one, at least."""
MEAN, LARGEST = 0.03, 0.6
"""Nats between the two log-probs of a token, at most; most between those of an unlikely one."""


def config(weights: str, dtype: str) -> LearnerConfig:
    return LearnerConfig.model_validate(
        {"device": "cpu", "weights": weights, "dtype": dtype, "lora": {"rank": 8, "alpha": 16}}
    )


def moved(base: Path, chosen: LearnerConfig) -> model.Trainee:
    """The model, its adapter away from where B is zero and A has no gradient."""
    trainee = model.load(base, chosen, fused=True)
    drawn = torch.Generator().manual_seed(0)
    for name, parameter in model.trained_parameters(trainee).items():
        if ".lora_" in name:
            size = 0.03 if ".lora_A." in name else 0.01
            parameter.data = torch.randn(parameter.shape, generator=drawn) * size
    return trainee


def given(one: Sequence[ScoredAction], sampled: Sequence[Tensor]) -> list[TrainingSample]:
    """Samples as a float32 engine gives them: with its own log-probs, which are corrected for."""
    old = [tuple(each.tolist()) for each in sampled]
    return samples(one, old, [(-1.0) ** (i // 2) * (1 + i % 3) for i in range(len(one))])


def sampler_logprobs(
    base: Path, chosen: LearnerConfig, one: Sequence[ScoredAction]
) -> list[Tensor]:
    """What a float32 engine would store of each action's tokens."""
    reading = choose_reading(model.inner(moved(base, chosen)), chosen)
    with torch.no_grad():
        found = read_rows(one, reading.cut, lambda tree, at: reading.read(tree, at).logprobs)
    return [torch.tensor(found[i]) for i in range(len(one))]


def read(
    base: Path, chosen: LearnerConfig, batch: list[TrainingSample]
) -> tuple[Tensor, list[Tensor]]:
    """Log-probs of all tokens, and the clipped objective's gradient of each parameter."""
    trainee = moved(base, chosen)
    reading = choose_reading(model.inner(trainee), chosen)
    assert reading.way == "tree"
    logprobs: list[Tensor] = []
    for part in micro_batched(batch, AlgorithmConfig(), reading.cut):
        tokens = reading.read(part.tree, part.temperature)
        assert tokens.logprobs.dtype is torch.float32
        loss_of(part, tokens, AlgorithmConfig()).loss.backward()
        logprobs.append(tokens.logprobs.detach())
    parameters = model.trained_parameters(trainee).values()
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert {p.dtype for p in (*parameters, *gradients)} == {torch.float32}
    return torch.cat(logprobs), gradients


def product(left: list[Tensor], right: list[Tensor]) -> float:
    """Of two gradients, summed in float64: of 135 million float32 terms the sum is 2 % off."""
    pairs = zip(left, right, strict=True)
    return sum(float((one * other).sum(dtype=torch.float64)) for one, other in pairs)


def assert_near(base: Path, weights: str, acted: Sequence[ScoredAction]) -> None:
    batch = given(acted, sampler_logprobs(base, config(weights, "float32"), acted))
    exact, near = (read(base, config(weights, each), batch) for each in ("float32", "bfloat16"))
    gaps = (near[0] - exact[0]).abs()
    assert 0 < gaps.mean() < MEAN
    assert gaps.max() < LARGEST
    lengths = [product(each, each) ** 0.5 for each in (near[1], exact[1])]
    assert product(near[1], exact[1]) / (lengths[0] * lengths[1]) > COSINE
    assert 0.95 < lengths[0] / lengths[1] < 1.05


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_a_tiny_model_learns_nearly_the_same(tiny_model: Path, weights: str) -> None:
    assert_near(tiny_model, weights, actions(12))


def worded(base: Path) -> list[ScoredAction]:
    """Sums with worked examples before them, and answers that the model itself samples."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain: Any = load_base(base, torch.float32, "cpu")
    torch.manual_seed(0)
    drawn = random.Random(0)
    shown = "".join(f"What is {i} + {i + 3}? The answer is {2 * i + 3}.\n" for i in range(6))
    found: list[ScoredAction] = []
    for _ in range(6):
        left, right = drawn.randint(10, 99), drawn.randint(10, 99)
        prompt = tokenizer(f"{shown}What is {left} + {right}?").input_ids
        ids = torch.tensor([prompt] * 4)
        sampled = plain.generate(ids, do_sample=True, top_k=0, max_new_tokens=16)
        rows = sampled[:, len(prompt) :].tolist()
        found += [action(prompt, row, len(found) + i, 1.0) for i, row in enumerate(rows)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["lora", "full"])
def test_the_real_model_learns_nearly_the_same(real_model: Path, weights: str) -> None:
    assert_near(real_model, weights, worded(real_model))


def test_what_is_kept_of_an_update_is_float32(make_learner: MakeLearner) -> None:
    learner = make_learner(dtype="bfloat16", lora=LoraConfig(rank=4, alpha=8))
    acted = actions(6)
    batch = samples(acted, learner.logprobs(BASE, acted), [1.0, -1.0] * 3)
    report = learner.update(BASE, batch, AlgorithmConfig(), total_steps=4, seed=3)
    # The sampler is the learner itself, read in the same type: nothing is to be corrected.
    assert report.metrics["mismatch_kl"] < 1e-6
    assert report.metrics["correction_mean"] == pytest.approx(1.0, abs=1e-3)
    for file in ("adapter_model.safetensors", "optimizer.safetensors"):
        stored = load_file(Path(report.checkpoint.directory) / file)
        assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
