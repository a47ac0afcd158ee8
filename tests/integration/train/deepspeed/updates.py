"""Updates of a tiny model, and how those of two learners are compared."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.train.config import (
    AlgorithmConfig,
    DeepspeedConfig,
    GuardConfig,
    LearnerConfig,
    LoraConfig,
)
from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner
from mappa_core.train.protocols import Learner
from tests.integration.train.learner.samples import BASE, actions, samples

Gangs = Callable[[int], DeepspeedLearner]
Zero = Callable[[LearnerConfig], DeepspeedLearner]

# The samples' log-probs are made up, far from the model's: the guard on their mismatch is off.
ALGORITHM = AlgorithmConfig(guard=GuardConfig(mismatch_kl_max=None))
ADVANTAGES = [1.0, -1.0, 0.5, -0.5, 0.0, 2.0, -2.0]
CONFIG = LearnerConfig(
    device="cpu",
    dtype="float32",
    lora=LoraConfig(rank=4, alpha=8),
    learning_rate=1e-2,
    micro_batch_tokens=24,
    gradient_clip=0.5,
)


def spread(stage: int, ranks: int, **settings: object) -> LearnerConfig:
    config = CONFIG.model_copy(update=settings)
    given = {"stage": stage, "ranks": ranks, "timeout_seconds": 250}
    return config.model_copy(update={"deepspeed": DeepspeedConfig.model_validate(given)})


def batch() -> list[TrainingSample]:
    given = actions(7)
    return samples(given, [(-5.0,) * len(one.token_ids) for one in given], ADVANTAGES)


def updates(learner: Learner, count: int) -> list[UpdateReport]:
    """Each update goes on from the weights and moments of the one before."""
    reports: list[UpdateReport] = []
    for _ in range(count):
        reports.append(_update(learner, reports[-1].policy if reports else BASE))
    return reports


def updates_beside(reports: Sequence[UpdateReport], learner: Learner) -> list[UpdateReport]:
    """The same updates by another learner, each from the checkpoint that the first one had.

    From its own, a second update would differ by what the first made of gradients of rounding.
    """
    return [_update(learner, policy) for policy in (BASE, *(one.policy for one in reports[:-1]))]


def _update(learner: Learner, policy: PolicyVersion) -> UpdateReport:
    report = learner.update(policy, batch(), ALGORITHM, total_steps=4, seed=3)
    assert report.skipped is None
    return report


def files(report: UpdateReport) -> dict[str, torch.Tensor]:
    directory = Path(report.checkpoint.directory)
    return {
        name: tensor
        for file in directory.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


ROUNDING = 1e-6
"""Of a first moment: within this much two learners' gradients are taken for the same."""


def assert_same(ours: Sequence[UpdateReport], theirs: Sequence[UpdateReport]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm", "entropy", "mismatch_kl", "tokens", "learning_rate"):
            assert mine.metrics[name] == pytest.approx(other.metrics[name], rel=2e-5), name
        expected, actual = files(other), files(mine)
        assert actual.keys() == expected.keys()
        state = {key for key in expected if key.startswith(("exp_avg", "step."))}
        for name in state:
            torch.testing.assert_close(actual[name], expected[name], atol=1e-6, rtol=1e-4)
        for name in expected.keys() - state:
            # Adam divides by the gradient's size: a gradient of rounding has any direction, and of
            # such an element the moment above says that the gradient is the same.
            trained = name.replace(".weight", ".default.weight") if "lora_" in name else name
            firm = expected[f"exp_avg.{trained}"].abs() > ROUNDING
            torch.testing.assert_close(
                actual[name][firm], expected[name][firm], atol=1e-3, rtol=1e-3
            )
