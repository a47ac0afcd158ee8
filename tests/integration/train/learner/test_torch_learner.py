"""What is particular to the torch learner: its checkpoints, and that it repeats itself exactly."""

import json
import math
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from mappa_core.core.errors import ConfigError, DiskFull, LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.train import checkpoints
from mappa_core.train.batches import SHORTEST_ROOT
from mappa_core.train.config import AlgorithmConfig, GuardConfig, LoraConfig, MismatchConfig
from mappa_core.train.learners import memory, optimizer, rounded_linear, torch_learner
from mappa_core.train.learners.embedding import EmbeddingGradient
from mappa_core.train.learners.families import tiny_model
from mappa_core.train.learners.fused_linear import GatedMlp
from mappa_core.train.learners.reading import Reading
from mappa_core.train.learners.self_check import choose_reading
from mappa_core.train.learners.torch_learner import TorchLearner
from mappa_core.train.metrics import StepTaken
from mappa_core.train.prefix_tree import PrefixTree
from mappa_core.train.shared_root import SharedRoot
from mappa_core.train.token_logprobs import TokenLogprobs
from tests.full_disk import largest_file
from tests.integration.train.learner.conftest import SMALL, MakeLearner
from tests.integration.train.learner.samples import BASE, actions, samples

ALGORITHM = AlgorithmConfig(loss_over="samples")
FROM_SAMPLER = AlgorithmConfig(loss_over="samples", mismatch=MismatchConfig(importance="none"))
FILES = {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"}


def batch(
    learner: TorchLearner, policy: PolicyVersion = BASE, shares: int = 12
) -> list[TrainingSample]:
    given = actions(6, shares=shares)
    return samples(given, learner.logprobs(policy, given), [1.0, -1.0, 0.5, -0.5, 0.0, 2.0])


def update(
    learner: TorchLearner, policy: PolicyVersion = BASE, seed: int = 3, shares: int = 12
) -> UpdateReport:
    given = batch(learner, policy, shares)
    return learner.update(policy, given, ALGORITHM, total_steps=4, seed=seed)


def file_bytes(report: UpdateReport) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(report.checkpoint.directory).iterdir()}


def test_same_checkpoint_samples_and_seed_give_the_same_bytes(make_learner: MakeLearner) -> None:
    learner = make_learner(epochs=2, minibatches=2)
    first = update(learner)
    second = update(learner, first.policy)
    before = file_bytes(first), file_bytes(second)

    # A process that starts over, and one that did something else in between, agree to the bit.
    assert file_bytes(update(make_learner(epochs=2, minibatches=2), first.policy)) == before[1]
    assert file_bytes(update(learner)) == before[0]


@pytest.mark.parametrize("steps", [1, 2])
def test_an_engines_rounding_moves_no_weights(make_learner: MakeLearner, steps: int) -> None:
    """A resumed run's engine has other batches, so its log-probs differ in their last digits."""
    learner = make_learner(epochs=steps)
    given = batch(learner)
    rounded = [
        replace(one, old_logprobs=tuple(value + 4e-5 * (-1) ** i for value in one.old_logprobs))
        for i, one in enumerate(given)
    ]
    exact = ALGORITHM.model_copy(update={"mismatch": MismatchConfig(dead_band=0)})
    hashes = {
        band: [
            learner.update(BASE, drawn, algorithm, total_steps=4, seed=3).checkpoint.sha256
            for drawn in (given, rounded)
        ]
        for band, algorithm in (("dead", ALGORITHM), ("none", exact))
    }
    assert hashes["dead"][0] == hashes["dead"][1]
    assert hashes["none"][0] != hashes["none"][1]


def test_another_seed_draws_another_adapter(make_learner: MakeLearner) -> None:
    learner = make_learner()
    assert update(learner).checkpoint.sha256 != update(learner, seed=4).checkpoint.sha256


def test_micro_batches_change_memory_not_the_result(make_learner: MakeLearner) -> None:
    whole, cut = (
        load_file(Path(update(learner).checkpoint.directory) / "adapter_model.safetensors")
        for learner in (make_learner(), make_learner(micro_batch_tokens=1))
    )
    for name, tensor in whole.items():
        torch.testing.assert_close(cut[name], tensor, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("shares", "roots"), [(12, 0), (SHORTEST_ROOT, 6)])
@pytest.mark.parametrize("weights", ["lora", "full"])
def test_passes_at_once_are_those_one_after_another_and_repeat_to_the_bit(
    make_learner: MakeLearner,
    monkeypatch: pytest.MonkeyPatch,
    weights: str,
    shares: int,
    roots: int,
) -> None:
    made, init = list[int](), SharedRoot.__init__

    def counted(root: SharedRoot, nodes: int) -> None:
        made.append(nodes)
        init(root, nodes)

    monkeypatch.setattr(SharedRoot, "__init__", counted)
    alone, beside = (make_learner(threads=n, weights=weights, epochs=2) for n in (1, 2))
    expected = update(alone, shares=shares)
    assert not made
    found = [update(beside, shares=shares) for _ in range(3)]
    # One for two passes, in each of two epochs of three updates.
    assert made == [shares] * roots
    assert len({report.checkpoint.sha256 for report in found}) == 1
    assert found[0].metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-4)
    (name,) = (file for file in file_bytes(expected) if file.startswith(("adapter_model", "model")))
    one, two = (
        load_file(Path(report.checkpoint.directory) / name) for report in (expected, found[0])
    )
    for key, tensor in one.items():
        torch.testing.assert_close(two[key], tensor, atol=1e-5, rtol=1e-3)


def test_peft_itself_loads_the_checkpoint_and_agrees(
    make_learner: MakeLearner, tiny_model: Path
) -> None:
    learner = make_learner()
    report = update(learner, update(learner).policy)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, report.checkpoint.directory)
    [one] = given = actions(1)
    with torch.no_grad():
        ids = torch.tensor([[*one.prompt_token_ids, *one.token_ids]])
        logits = model(input_ids=ids).logits[0, len(one.prompt_token_ids) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
    assert learner.logprobs(report.policy, given)[0] == pytest.approx(expected.tolist(), abs=2e-6)
    assert learner.logprobs(BASE, given) != learner.logprobs(report.policy, given)


def test_checkpoint_directory(make_learner: MakeLearner, tmp_path: Path) -> None:
    report = update(make_learner())
    directory = tmp_path / "checkpoints" / str(BASE.run_id) / "solver" / "1"
    assert report.policy.adapter_uri == report.checkpoint.directory == str(directory)
    assert {path.name for path in directory.iterdir()} == FILES | {"manifest.json"}
    assert set(json.loads((directory / "manifest.json").read_text())["sha256"]) == FILES
    config = json.loads((directory / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "models/tiny"
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    assert report.checkpoint.size_bytes == sum(path.stat().st_size for path in directory.iterdir())
    assert [path.name for path in directory.parent.iterdir()] == ["1"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.safetensors"])
def test_a_damaged_file_is_named_with_a_way_on(make_learner: MakeLearner, name: str) -> None:
    learner = make_learner()
    policy = update(learner, update(learner).policy).policy
    file = Path(policy.adapter_uri or "") / name
    given = batch(learner, policy)
    checkpoints.verify(file.parent)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    message = rf"{name} is damaged.*: mappa train --fork {BASE.run_id}"
    with pytest.raises(LearnerError, match=message):
        checkpoints.verify(file.parent)
    with pytest.raises(LearnerError, match=message):
        learner.update(policy, given, ALGORITHM, total_steps=4, seed=1)


def test_a_missing_checkpoint_is_named(make_learner: MakeLearner, tmp_path: Path) -> None:
    gone = replace(BASE, step=5, adapter_uri=str(tmp_path / "gone" / "5"))
    with pytest.raises(LearnerError, match=r"gone/5/manifest.json.*--fork"):
        make_learner().logprobs(gone, actions(1))


def test_an_adapter_of_another_rank_is_refused(make_learner: MakeLearner) -> None:
    policy = update(make_learner()).policy
    other = make_learner(lora=LoraConfig(rank=2, alpha=8))
    with pytest.raises(LearnerError, match=r"does not fit.*learner\.lora"):
        other.logprobs(policy, actions(1))


def test_a_checkpoint_that_does_not_fit_leaves_nothing(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    learner = make_learner()
    given = batch(learner)
    with largest_file(50_000), pytest.raises(DiskFull, match=r"free \d+ MiB, then resume"):
        learner.update(BASE, given, ALGORITHM, total_steps=4, seed=3)
    assert list((tmp_path / "checkpoints" / str(BASE.run_id) / "solver").iterdir()) == []
    assert update(learner).policy.step == 1


def test_an_infinite_loss_saves_nothing(make_learner: MakeLearner, tmp_path: Path) -> None:
    learner = make_learner()
    [sample, *_] = batch(learner)
    length = len(sample.token_ids)
    wild = replace(sample, advantages=(-1.0,) * length, old_logprobs=(-1e4,) * length)
    with pytest.raises(LearnerError, match="nothing was saved"):
        learner.update(BASE, [wild], FROM_SAMPLER, total_steps=4, seed=3)
    assert not (tmp_path / "checkpoints").exists()


def test_epochs_and_minibatches_are_optimizer_steps(make_learner: MakeLearner) -> None:
    metrics = update(make_learner(epochs=3, minibatches=2)).metrics
    assert metrics["optimizer_steps"] == 6.0
    assert metrics["kl_sampler"] < 1e-5  # before the first step nothing had changed yet
    assert metrics["ratio_mean"] != pytest.approx(1.0, abs=1e-4)


def test_whole_weights_are_rounded_once_for_all_passes_of_a_step(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded: list[tuple[int, int]] = []

    def counted(
        layers: Collection[torch.nn.Linear], mlps: Collection[GatedMlp]
    ) -> AbstractContextManager[None]:
        rounded.append((len(layers), len(mlps)))
        return rounded_linear.weights_rounded(layers, mlps)

    monkeypatch.setattr(torch_learner, "weights_rounded", counted)
    for dtype, layers, mlps in (("bfloat16", 14, 2), ("float32", 0, 0)):
        rounded.clear()
        learner = make_learner(
            weights="full", dtype=dtype, epochs=2, minibatches=2, micro_batch_tokens=8
        )
        assert update(learner).metrics["optimizer_steps"] == 4
        assert rounded == [(layers, mlps)] * 4


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_moments_come_when_activations_have_gone(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    learner, seen = make_learner(weights=weights), list[str]()
    backward, state_before = learner._backward, optimizer.state_before  # noqa: SLF001

    def learnt(*given: Any) -> StepTaken:
        seen.append("gradient")
        return backward(*given)

    def read(policy: PolicyVersion) -> dict[str, Tensor]:
        seen.append("moments")
        return state_before(policy)

    monkeypatch.setattr(learner, "_backward", learnt)
    monkeypatch.setattr(optimizer, "state_before", read)
    given = batch(learner)
    monkeypatch.setattr(memory, "release", lambda: seen.append("given back"))
    learner.update(BASE, given, ALGORITHM, total_steps=4, seed=3)
    after = ["given back", "moments"] if weights == "full" else ["moments"]
    assert seen[: 1 + len(after)] == ["gradient", *after]


@pytest.mark.parametrize("first", [True, False])
def test_a_pass_that_fails_is_told_and_not_the_one_that_waits_for_it(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    learner = make_learner(threads=2)
    expected = update(learner, shares=SHORTEST_ROOT).checkpoint.sha256

    read = Reading.read

    def fails(
        reading: Reading, tree: PrefixTree, temperature: float, root: SharedRoot | None = None
    ) -> TokenLogprobs:
        if root is not None and (tree.root > 0) is first:
            raise ArithmeticError("cut short")
        return read(reading, tree, temperature, root)

    with monkeypatch.context() as failing:
        failing.setattr(Reading, "read", fails)
        with pytest.raises(ArithmeticError, match="cut short"):
            update(learner, shares=SHORTEST_ROOT)
    assert update(learner, shares=SHORTEST_ROOT).checkpoint.sha256 == expected


@pytest.mark.parametrize(("shares", "alike"), [(SHORTEST_ROOT - 1, True), (SHORTEST_ROOT, False)])
def test_parts_leave_room_for_a_root_that_is_not_shared(shares: int, alike: bool) -> None:
    prompts = [(*range(shares), 500 + i) for i in range(6)]
    responses = [(7, 8)] * 6
    whole = replace(choose_reading(tiny_model("llama"), SMALL), at_once=2, budget_tokens=80)
    sharing = replace(whole, shares_root=True)
    assert (sharing.cut(prompts, responses) == whole.cut(prompts, responses)) == alike


def test_passes_share_no_root_where_a_layer_sees_less_or_is_computed_twice(
    make_learner: MakeLearner,
) -> None:
    whole, windowed = (
        choose_reading(tiny_model(family), SMALL).sees_all for family in ("llama", "gemma2")
    )
    assert whole
    assert not windowed
    twice = make_learner(threads=2, gradient_checkpointing=True)
    assert update(twice, shares=SHORTEST_ROOT).metrics["grad_norm"] > 0


def test_an_update_that_failed_leaves_nothing_to_the_next(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(weights="full")
    expected = update(learner).checkpoint.sha256
    with monkeypatch.context() as failing:
        failing.setattr(EmbeddingGradient, "finish", lambda _: pytest.fail("cut short"))
        with pytest.raises(pytest.fail.Exception, match="cut short"):
            update(learner)
    assert update(learner).checkpoint.sha256 == expected


def test_a_tied_embeddings_gradient_is_summed_in_place_where_it_is_trained(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[EmbeddingGradient] = []
    monkeypatch.setattr(EmbeddingGradient, "finish", lambda self: finished.append(self))
    for weights, steps in (("full", 4), ("lora", 0)):
        finished.clear()
        update(make_learner(weights=weights, epochs=2, minibatches=2))
        assert len(finished) == steps


def test_freed_memory_is_kept_for_the_next_update_unless_it_is_more_than_ever(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, given_back = make_learner(), list[int]()
    now = 2**40
    monkeypatch.setattr(memory, "resident", lambda: now)
    monkeypatch.setattr(memory, "release", lambda: given_back.append(now))
    given = actions(1)
    for now in (2**41, 2**40, 2**41, 2**42):  # noqa: B007 (what is resident then)
        learner.logprobs(BASE, given)
    assert given_back == [2**41, 2**42]


def test_passes_at_once_take_memory_from_one_heap(tiny_model: Path, tmp_path: Path) -> None:
    """A process counts its heaps before and after an update of two passes at once."""
    script = Path(__file__).parent / "heaps.py"
    command = [sys.executable, "-m", f"{__package__}.{script.stem}", tiny_model, tmp_path]
    heaps = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    before, after = map(int, heaps.stdout.split())
    assert after == before


def test_metrics_of_a_plain_update(make_learner: MakeLearner) -> None:
    metrics = update(make_learner()).metrics
    assert metrics["samples"] == 6.0
    assert metrics["zero_advantage_share"] == pytest.approx(1 / 6)
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["learning_rate"] == 1e-2
    # On policy every ratio is 1, so the loss is minus the mean advantage.
    assert metrics["loss"] == pytest.approx(-2.0 / 6, abs=1e-5)
    assert 0 < metrics["entropy"] < 6
    assert metrics["grad_norm"] > 0
    assert metrics["distinct_tokens"] < metrics["tokens"] + 6 * 15


def off_policy(learner: TorchLearner, shift: float) -> list[TrainingSample]:
    """Samples of a sampler whose log-probs are all `shift` below the trainer's."""
    return [
        replace(sample, old_logprobs=tuple(value - shift for value in sample.old_logprobs))
        for sample in batch(learner)
    ]


def test_a_samplers_ratios_weigh_the_loss_and_are_truncated(make_learner: MakeLearner) -> None:
    learner = make_learner()
    losses = {
        shift: learner.update(
            BASE, off_policy(learner, shift), ALGORITHM, total_steps=4, seed=3
        ).metrics
        for shift in (0.0, 0.5, 5.0)
    }
    # e^0.5 is below the threshold of 2, e^5 above; the ratio to the trainer's own policy stays 1.
    assert losses[0.5]["loss"] == pytest.approx(losses[0.0]["loss"] * math.exp(0.5), abs=1e-5)
    assert losses[5.0]["loss"] == pytest.approx(losses[0.0]["loss"] * 2, abs=1e-5)
    assert losses[5.0]["clip_fraction"] == 0.0
    assert losses[0.5]["mismatch_kl"] == pytest.approx(math.exp(0.5) - 1.5, abs=1e-4)
    assert losses[0.5]["effective_sample_size"] == pytest.approx(1.0, abs=1e-5)


def test_later_steps_are_measured_against_the_weights_before_the_update(
    make_learner: MakeLearner,
) -> None:
    learner = make_learner(epochs=2)
    given = off_policy(learner, 0.5)
    metrics = learner.update(BASE, given, ALGORITHM, total_steps=4, seed=3).metrics
    assert metrics["mismatch_kl"] == pytest.approx(math.exp(0.5) - 1.5, abs=1e-4)
    assert metrics["correction_mean"] == pytest.approx(math.exp(0.5), abs=1e-4)
    # The first step's ratios are 1, the second's are not.
    assert metrics["ratio_mean"] != pytest.approx(1.0, abs=1e-5)


def test_the_guard_keeps_weights_and_moments_as_they_were(make_learner: MakeLearner) -> None:
    learner = make_learner(epochs=2)
    before = update(learner)
    watched = ALGORITHM.model_copy(update={"guard": GuardConfig(mismatch_kl_max=0.01)})
    given = samples(actions(6), [(-20.0,) * len(a.token_ids) for a in actions(6)], [1.0, -1.0] * 3)
    report = learner.update(before.policy, given, watched, total_steps=4, seed=3)
    assert report.skipped is not None
    assert "above algorithm.guard.mismatch_kl_max=0.01" in report.skipped
    assert (report.metrics["skipped"], report.policy.step) == (1.0, 2)
    assert file_bytes(report) == file_bytes(before)
    taken = learner.update(
        before.policy, batch(learner, before.policy), watched, total_steps=4, seed=3
    )
    assert (taken.skipped, taken.metrics["skipped"]) == (None, 0.0)


def test_a_policy_that_learns_is_not_taken_for_a_sampler_that_differs(
    make_learner: MakeLearner,
) -> None:
    learner = make_learner(epochs=3)
    bands = GuardConfig(mismatch_kl_max=1e-6, effective_sample_size_min=0.9999)
    free, watched = (
        learner.update(BASE, batch(learner), algorithm, total_steps=4, seed=3)
        for algorithm in (FROM_SAMPLER, FROM_SAMPLER.model_copy(update={"guard": bands}))
    )
    assert watched.skipped is None
    assert watched.metrics["optimizer_steps"] == 3.0
    assert watched.checkpoint.sha256 == free.checkpoint.sha256


def test_peak_memory_and_real_tokens_are_reported(make_learner: MakeLearner) -> None:
    metrics = update(make_learner()).metrics
    assert metrics["peak_memory_bytes"] > metrics["peak_extra_memory_bytes"] >= 0
    assert metrics["tokens_per_second"] > metrics["distinct_tokens_per_second"] > 0


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_layers_computed_twice_are_the_same_layers(make_learner: MakeLearner, weights: str) -> None:
    plain, twice = (
        load_file(Path(update(learner).checkpoint.directory) / "optimizer.safetensors")
        for learner in (
            make_learner(weights=weights),
            make_learner(weights=weights, gradient_checkpointing=True),
        )
    )
    for name, tensor in plain.items():
        torch.testing.assert_close(twice[name], tensor, atol=1e-6, rtol=1e-4)


def test_full_weights_are_a_model_that_transformers_loads(
    make_learner: MakeLearner, tiny_model: Path
) -> None:
    learner = make_learner(weights="full", learning_rate=1e-3)
    report = update(learner, update(learner).policy)
    directory = Path(report.checkpoint.directory)
    assert {path.name for path in directory.iterdir()} == {
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "manifest.json",
    }
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    [one] = given = actions(1)
    with torch.no_grad():
        ids = torch.tensor([[*one.prompt_token_ids, *one.token_ids]])
        logits = plain(input_ids=ids).logits[0, len(one.prompt_token_ids) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
    assert learner.logprobs(report.policy, given)[0] == pytest.approx(expected.tolist(), abs=2e-6)
    # The base policy is the base model still, although one model in memory serves both.
    assert learner.logprobs(BASE, given) == make_learner().logprobs(BASE, given)


class OnFullGpu(list[ScoredAction]):
    def __iter__(self) -> Iterator[ScoredAction]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee also")


def test_a_full_gpu_is_one_line_when_log_probs_are_asked_for(make_learner: MakeLearner) -> None:
    with pytest.raises(LearnerError, match=r"memory is full \(CUDA.*GiB\.\): .*micro_batch_tokens"):
        make_learner().logprobs(BASE, OnFullGpu())


def test_a_missing_gpu_is_one_line(make_learner: MakeLearner) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        make_learner(device="cuda")
