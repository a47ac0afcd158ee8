"""The same batch gives the same loss, gradients and next weights on every learner.

After a first AdamW step from nothing, the first moment is (1 - beta1) times the gradient: what the
checkpoints hold is compared, on gloo, rank by rank and stage by stage.
"""

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file

from mappa_core.core.errors import LearnerError
from mappa_core.core.ids import policy_version_id
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.train.config import (
    AlgorithmConfig,
    DeepspeedConfig,
    GuardConfig,
    LearnerConfig,
    LoraConfig,
)
from mappa_core.train.learners.checkpoint_learner import UpdateJob
from mappa_core.train.learners.torch_learner import TorchLearner
from mappa_core.train.protocols import Learner
from tests.integration.train.learner.samples import BASE, actions, samples
from tests.tiny_model import save_tiny_model

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")
from mappa_core.train.learners.deepspeed.exchange import (
    RankTask,
    read_reply,
    written_task,
)
from mappa_core.train.learners.deepspeed.launch import run_ranks
from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner

# The samples' log-probs are made up, far from the model's: the guard on their mismatch is off.
ALGORITHM = AlgorithmConfig(guard=GuardConfig(mismatch_kl_max=None))
ADVANTAGES = [1.0, -1.0, 0.5, -0.5, 0.0, 2.0, -2.0]
CONFIG = LearnerConfig(
    device="cpu",
    lora=LoraConfig(rank=4, alpha=8),
    learning_rate=1e-2,
    micro_batch_tokens=24,
    gradient_clip=0.5,
)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


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
    policy: PolicyVersion = BASE
    for _ in range(count):
        reports.append(learner.update(policy, batch(), ALGORITHM, total_steps=4, seed=3))
        assert reports[-1].skipped is None
        policy = reports[-1].policy
    return reports


def files(report: UpdateReport) -> dict[str, torch.Tensor]:
    directory = Path(report.checkpoint.directory)
    return {
        name: tensor
        for file in directory.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def assert_same(ours: Sequence[UpdateReport], theirs: Sequence[UpdateReport]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm", "entropy", "mismatch_kl", "tokens", "learning_rate"):
            assert mine.metrics[name] == pytest.approx(other.metrics[name], rel=2e-5), name
        expected, actual = files(other), files(mine)
        assert actual.keys() == expected.keys()
        for name, tensor in expected.items():
            if name.startswith("exp_avg."):
                torch.testing.assert_close(actual[name], tensor, atol=1e-6, rtol=1e-4)
            else:
                # Adam divides by the gradient's size: a gradient of rounding has any direction. A
                # tenth of a step is allowed; the moments above say that the gradient is the same.
                torch.testing.assert_close(actual[name], tensor, atol=1e-3, rtol=1e-3)


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
    tiny_model: Path, tmp_path: Path, stage: int, ranks: int, weights: str, count: int
) -> None:
    config = spread(stage, ranks, weights=weights)
    ours = updates(DeepspeedLearner(tiny_model, tmp_path / "zero", config, threads=1), count)
    theirs = updates(TorchLearner(tiny_model, tmp_path / "torch", config, threads=1), count)
    assert_same(ours, theirs)
    assert ours[0].metrics["ranks"] == ranks


def test_a_job_that_takes_too_long_is_given_up(tiny_model: Path, tmp_path: Path) -> None:
    hurried = DeepspeedConfig(ranks=1, timeout_seconds=0.1)
    config = CONFIG.model_copy(update={"deepspeed": hurried})
    learner = DeepspeedLearner(tiny_model, tmp_path, config, threads=1)
    with pytest.raises(LearnerError, match=r"longer than 0 s: read .*deepspeed\.log"):
        learner.update(BASE, batch(), ALGORITHM, total_steps=4, seed=3)


LONG_MS = 120_000
PARENT = """
import sys
from pathlib import Path
from mappa_core.train.learners.deepspeed.launch import run_ranks
from mappa_core.train.config import DeepspeedConfig

job = Path(sys.argv[1])
run_ranks(DeepspeedConfig(ranks=1), job, job.with_suffix(".log"), 1)
"""


def test_ranks_do_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    # A job that is never written holds its rank, and tells when it has come and when it is gone.
    os.mkfifo(job := tmp_path / "job.json")
    words = [sys.executable, "-c", PARENT, str(job)]
    with subprocess.Popen(words) as parent, job.open("wb") as rank:
        parent.kill()
        gone = select.poll()
        gone.register(rank, 0)
        assert gone.poll(LONG_MS) == [(rank.fileno(), select.POLLERR)]


def task_of(policy: PolicyVersion, directory: Path) -> RankTask:
    update = UpdateJob(
        policy=policy,
        samples=tuple(batch()),
        algorithm=ALGORITHM,
        total_steps=4,
        seed=3,
        directory=str(directory),
    )
    return RankTask(base_model="", policy=policy, learner=spread(2, 1), update=update)


def test_an_update_taken_up_again_takes_the_job_from_an_earlier_attempt(tmp_path: Path) -> None:
    mine = task_of(BASE, tmp_path)
    another = task_of(replace(BASE, id=policy_version_id(BASE.run_id, "critic", 0)), tmp_path)
    with (
        written_task(tmp_path, mine) as earlier,
        written_task(tmp_path, another) as other,
    ):
        with written_task(tmp_path, mine) as again:
            assert [file.exists() for file in (earlier, other, again)] == [
                False,
                True,
                True,
            ]
        assert not again.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ranks_whose_job_is_gone_save_nothing(tiny_model: Path, tmp_path: Path) -> None:
    job = replace(task_of(BASE, tmp_path / "saved"), base_model=str(tiny_model))
    os.mkfifo(file := tmp_path / "job.json")
    with ThreadPoolExecutor() as learner:
        running = learner.submit(run_ranks, job.learner.deepspeed, file, tmp_path / "ranks.log", 1)
        with file.open("wb") as rank:
            rank.write(TypeAdapter(RankTask).dump_json(job))
            file.unlink()
        running.result()
    reply = read_reply(file)
    assert reply is not None
    assert "nothing was saved" in str(reply.error)
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_log_probs_are_those_of_the_torch_learner(tiny_model: Path, tmp_path: Path) -> None:
    config = spread(3, 2)
    given = actions(5)
    ours = DeepspeedLearner(tiny_model, tmp_path, config, threads=1).logprobs(BASE, given)
    theirs = TorchLearner(tiny_model, tmp_path, config, threads=1).logprobs(BASE, given)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=2e-6)


@pytest.mark.slow
def test_what_fails_on_a_rank_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    away = replace(BASE, step=4, adapter_uri=str(tmp_path / "gone" / "4"))
    learner = DeepspeedLearner(tiny_model, tmp_path, spread(1, 2), threads=1)
    with pytest.raises(LearnerError, match=r"gone/4/.*mappa train --fork "):
        learner.update(away, batch(), ALGORITHM, total_steps=4, seed=3)


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
    tiny_model: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    config = spread(3, 2, **settings)
    ours = updates(DeepspeedLearner(tiny_model, tmp_path / "zero", config, threads=1), 1)
    theirs = updates(TorchLearner(tiny_model, tmp_path / "torch", config, threads=1), 1)
    assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_offloaded_state_is_the_same_state(tiny_model: Path, tmp_path: Path, stage: int) -> None:
    config = spread(stage, 2)
    offload = config.deepspeed.model_copy(update={"offload": True})
    config = config.model_copy(update={"deepspeed": offload})
    ours = updates(DeepspeedLearner(tiny_model, tmp_path / "zero", config, threads=1), 2)
    theirs = updates(TorchLearner(tiny_model, tmp_path / "torch", config, threads=1), 2)
    assert_same(ours, theirs)


@pytest.mark.slow
def test_the_guard_keeps_weights_and_moments_as_they_were(tiny_model: Path, tmp_path: Path) -> None:
    learner = DeepspeedLearner(tiny_model, tmp_path, spread(2, 2), threads=1)
    (before,) = updates(learner, 1)
    watched = AlgorithmConfig(guard=GuardConfig(mismatch_kl_max=None, grad_norm_max=1e-9))
    report = learner.update(before.policy, batch(), watched, total_steps=4, seed=3)
    assert "above algorithm.guard.grad_norm_max" in str(report.skipped)
    kept, found = files(before), files(report)
    assert kept.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_keeps_float32_masters(tiny_model: Path, tmp_path: Path, stage: int) -> None:
    config = spread(stage, 2, weights="full")
    rough = config.deepspeed.model_copy(update={"dtype": "bfloat16"})
    config = config.model_copy(update={"deepspeed": rough, "learning_rate": 1e-5})
    ours = updates(DeepspeedLearner(tiny_model, tmp_path / "zero", config, threads=1), 2)
    theirs = updates(TorchLearner(tiny_model, tmp_path / "torch", config, threads=1), 2)
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
