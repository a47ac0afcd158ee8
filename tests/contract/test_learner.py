"""What `Learner` promises, on every learner."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.core.ids import policy_version_id
from mappa_core.core.records.updates import TrainingSample
from mappa_core.models.tensor_files import sha256_file
from mappa_core.train.config import AlgorithmConfig, LearnerConfig, LoraConfig
from mappa_core.train.learners.torch_learner import TorchLearner
from mappa_core.train.protocols import Learner
from tests.integration.train.learner.samples import BASE, actions, samples
from tests.tiny_model import save_tiny_model

ALGORITHM = AlgorithmConfig()
CONFIG = LearnerConfig(
    device="cpu", dtype="float32", lora=LoraConfig(rank=4, alpha=8), learning_rate=1e-2
)


def torch_learner(base: Path, checkpoints: Path) -> TorchLearner:
    return TorchLearner(base, checkpoints, CONFIG, threads=1)


LEARNERS: dict[str, Callable[[Path, Path], Learner]] = {"torch": torch_learner}


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=list(LEARNERS))
def learner(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Learner:
    return LEARNERS[request.param](tiny_model, tmp_path)


def on_policy(learner: Learner, advantages: list[float]) -> list[TrainingSample]:
    given = actions(len(advantages))
    return samples(given, learner.logprobs(BASE, given), advantages)


def test_logprobs_have_the_shape_of_the_actions_and_are_negative(learner: Learner) -> None:
    given = actions(5)
    rows = learner.logprobs(BASE, given)
    assert [len(row) for row in rows] == [len(action.token_ids) for action in given]
    assert all(math.isfinite(value) and value < 0 for row in rows for value in row)


def test_logprobs_do_not_depend_on_company_or_order(learner: Learner) -> None:
    given = actions(5)
    rows = learner.logprobs(BASE, given)
    backwards = learner.logprobs(BASE, given[::-1])[::-1]
    one_by_one = [learner.logprobs(BASE, [action])[0] for action in given]
    for row, other, single in zip(rows, backwards, one_by_one, strict=True):
        assert row == pytest.approx(other, abs=2e-6)
        assert row == pytest.approx(single, abs=2e-6)


def test_no_actions_no_logprobs(learner: Learner) -> None:
    assert learner.logprobs(BASE, []) == ()


def test_an_update_is_the_next_policy_version_and_its_checkpoint(learner: Learner) -> None:
    given = on_policy(learner, [1.0, -1.0])
    report = learner.update(BASE, given, ALGORITHM, total_steps=2, seed=1)
    policy, checkpoint = report.policy, report.checkpoint
    assert (policy.step, policy.run_id, policy.agent) == (1, BASE.run_id, BASE.agent)
    assert policy.id == checkpoint.policy_version_id == policy_version_id(BASE.run_id, "solver", 1)
    assert policy.base_model == BASE.base_model
    assert checkpoint.sha256 == sha256_file(
        Path(checkpoint.directory) / "adapter_model.safetensors"
    )
    assert report.seconds > 0
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert {"loss", "grad_norm", "clip_fraction", "learning_rate", "kl_sampler"} <= set(
        report.metrics
    )


def test_good_actions_become_likelier_and_bad_ones_less(learner: Learner) -> None:
    advantages = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    given = on_policy(learner, advantages)
    report = learner.update(BASE, given, ALGORITHM, total_steps=2, seed=1)
    after = learner.logprobs(report.policy, actions(6))
    for sample, row in zip(given, after, strict=True):
        change = sum(row) - sum(sample.old_logprobs)
        assert change * sample.advantages[0] > 0


def test_the_base_policy_stays_what_it_was(learner: Learner) -> None:
    before = learner.logprobs(BASE, actions(3))
    learner.update(BASE, on_policy(learner, [1.0, -1.0]), ALGORITHM, total_steps=2, seed=1)
    assert learner.logprobs(BASE, actions(3)) == before


def test_repeating_an_update_is_harmless(learner: Learner) -> None:
    given = on_policy(learner, [1.0, -1.0, 0.5])
    first = learner.update(BASE, given, ALGORITHM, total_steps=2, seed=1)
    again = learner.update(BASE, given, ALGORITHM, total_steps=2, seed=1)
    assert (again.policy, again.checkpoint) == (first.policy, first.checkpoint)


@pytest.mark.parametrize("advantages", [[], [0.0, 0.0]])
def test_without_a_signal_the_weights_stay_and_the_step_counts(
    learner: Learner, advantages: list[float]
) -> None:
    moved = learner.update(
        BASE, on_policy(learner, [1.0, -1.0]), ALGORITHM, total_steps=3, seed=1
    ).policy
    report = learner.update(moved, on_policy(learner, advantages), ALGORITHM, total_steps=3, seed=1)
    assert report.policy.step == 2
    assert learner.logprobs(report.policy, actions(3)) == learner.logprobs(moved, actions(3))


def test_a_kl_pull_brings_the_policy_back_to_the_base(learner: Learner) -> None:
    given = actions(6)
    base = learner.logprobs(BASE, given)
    away = learner.update(
        BASE, on_policy(learner, [1.0, -1.0] * 3), ALGORITHM, total_steps=9, seed=1
    ).policy
    pulled = samples(given, learner.logprobs(away, given), [0.0] * 6)
    pulled = [
        replace(sample, reference_logprobs=reference)
        for sample, reference in zip(pulled, base, strict=True)
    ]
    algorithm = AlgorithmConfig(kl="k2_loss", kl_coefficient=1.0)
    report = learner.update(away, pulled, algorithm, total_steps=9, seed=1)
    back = learner.update(report.policy, pulled, algorithm, total_steps=9, seed=1)
    assert report.metrics["kl_base"] > back.metrics["kl_base"] > 0
