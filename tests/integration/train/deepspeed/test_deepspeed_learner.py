"""The same batch gives the same loss, gradients and next weights on every learner.

After a first AdamW step from nothing, the first moment is (1 - beta1) times the gradient: what the
checkpoints hold is compared, on gloo, rank by rank and stage by stage.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mappa_core.train.config import AlgorithmConfig, GuardConfig
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.integration.train.deepspeed.updates import (
    Zero,
    assert_same,
    batch,
    files,
    spread,
    updates,
    updates_beside,
)
from tests.integration.train.learner.samples import BASE, actions

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")


@pytest.mark.parametrize(
    ("stage", "ranks", "weights", "count"),
    [
        (2, 2, "lora", 1),
        *(
            pytest.param(stage, ranks, weights, 2, marks=pytest.mark.slow)
            for stage in (3, 2, 1)
            for ranks in (2, 1)
            for weights in ("full", "lora")
        ),
    ],
)
def test_updates_are_those_of_the_torch_learner(
    zero: Zero, tiny_model: Path, tmp_path: Path, stage: int, ranks: int, weights: str, count: int
) -> None:
    config = spread(stage, ranks, weights=weights)
    ours = updates(zero(config), count)
    theirs = updates_beside(ours, TorchLearner(tiny_model, tmp_path / "torch", config, threads=1))
    assert_same(ours, theirs)
    assert ours[0].metrics["ranks"] == ranks


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_log_probs_are_those_of_the_torch_learner(
    zero: Zero, tiny_model: Path, tmp_path: Path, stage: int
) -> None:
    config = spread(stage, 2)
    given = actions(5)
    ours = zero(config).logprobs(BASE, given)
    theirs = TorchLearner(tiny_model, tmp_path, config, threads=1).logprobs(BASE, given)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 2, "minibatches": 2},
        {"gradient_checkpointing": True},
        {"micro_batch_tokens": 1},
    ],
    ids=["steps", "checkpointing", "micro-batches"],
)
def test_settings_mean_the_same(
    zero: Zero, tiny_model: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    config = spread(3, 2, **settings)
    ours = updates(zero(config), 1)
    theirs = updates_beside(ours, TorchLearner(tiny_model, tmp_path / "torch", config, threads=1))
    assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_offloaded_state_is_the_same_state(
    zero: Zero, tiny_model: Path, tmp_path: Path, stage: int
) -> None:
    config = spread(stage, 2)
    offload = config.deepspeed.model_copy(update={"offload": True})
    config = config.model_copy(update={"deepspeed": offload})
    ours = updates(zero(config), 2)
    theirs = updates_beside(ours, TorchLearner(tiny_model, tmp_path / "torch", config, threads=1))
    assert_same(ours, theirs)


@pytest.mark.slow
def test_the_guard_keeps_weights_and_moments_as_they_were(zero: Zero) -> None:
    learner = zero(spread(2, 2))
    (before,) = updates(learner, 1)
    watched = AlgorithmConfig(guard=GuardConfig(mismatch_kl_max=None, grad_norm_max=1e-9))
    report = learner.update(before.policy, batch(), watched, total_steps=4, seed=3)
    assert "above algorithm.guard.grad_norm_max" in str(report.skipped)
    kept, found = files(before), files(report)
    assert kept.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_products_in_bfloat16_round_as_the_torch_learners(
    zero: Zero, tiny_model: Path, tmp_path: Path, stage: int
) -> None:
    config = spread(stage, 1, dtype="bfloat16")
    (ours,) = updates(zero(config), 1)
    (theirs,) = updates(TorchLearner(tiny_model, tmp_path / "torch", config, threads=1), 1)
    assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], abs=0.01)
    assert ours.metrics["grad_norm"] == pytest.approx(theirs.metrics["grad_norm"], rel=0.05)
    assert {tensor.dtype for tensor in files(ours).values()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_keeps_float32_masters(
    zero: Zero, tiny_model: Path, tmp_path: Path, stage: int
) -> None:
    config = spread(stage, 2, weights="full")
    rough = config.deepspeed.model_copy(update={"dtype": "bfloat16"})
    config = config.model_copy(update={"deepspeed": rough, "learning_rate": 1e-5})
    ours = updates(zero(config), 2)
    theirs = updates_beside(ours, TorchLearner(tiny_model, tmp_path / "torch", config, threads=1))
    base = load_file(tiny_model / "model.safetensors")
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        assert mine.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=0.05)
        assert mine.metrics["grad_norm"] == pytest.approx(other.metrics["grad_norm"], rel=0.1)
        state = files(mine)
        assert {float(state[name]) for name in state if name.startswith("step.")} == {step}
        for name, tensor in base.items():
            assert state[name].dtype == torch.float32
            # A step of 1e-5 is far below bfloat16's resolution: only a master keeps it.
            assert 0 < (state[name] - tensor.float()).abs().max() < 2e-5 * step
