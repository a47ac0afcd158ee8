"""What only a GPU can show: `pytest -m gpu tests/integration/train/deepspeed`."""

from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
import torch

from mappa_core.train.config import (
    AlgorithmConfig,
    DeepspeedConfig,
    GuardConfig,
    LearnerConfig,
    LoraConfig,
)
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.integration.train.learner.samples import BASE, actions, samples
from tests.tiny_model import save_tiny_model

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")
from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner


@pytest.mark.gpu
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("weights", ["lora", "full"])
def test_nccl_and_bfloat16_learn_what_the_torch_learner_learns(
    tmp_path: Path, stage: Literal[1, 2, 3], weights: Literal["lora", "full"]
) -> None:
    ranks = torch.cuda.device_count()
    base = save_tiny_model(tmp_path / "tiny")
    config = LearnerConfig(
        device="cuda",
        weights=weights,
        lora=LoraConfig(rank=4, alpha=8),
        learning_rate=1e-3,
        deepspeed=DeepspeedConfig(ranks=ranks, stage=stage, offload=stage > 1),
    )
    given = actions(8)
    batch = samples(given, [(-5.0,) * len(one.token_ids) for one in given], [1.0, -1.0] * 4)
    algorithm = AlgorithmConfig(guard=GuardConfig(mismatch_kl_max=None))
    gpus = [str(gpu) for gpu in range(ranks)]
    ours = DeepspeedLearner(base, tmp_path / "zero", config, devices=gpus)
    theirs = TorchLearner(base, tmp_path / "torch", config)
    with closing(ours):
        spread = ours.update(BASE, batch, algorithm, total_steps=2, seed=1)
        after = ours.logprobs(spread.policy, given)
    single = theirs.update(BASE, batch, algorithm, total_steps=2, seed=1)
    assert spread.metrics["loss"] == pytest.approx(single.metrics["loss"], abs=0.05)
    assert spread.metrics["grad_norm"] == pytest.approx(single.metrics["grad_norm"], rel=0.1)
    for mine, other in zip(after, theirs.logprobs(single.policy, given), strict=True):
        assert mine == pytest.approx(other, abs=0.1)
