"""Each model family as the learner reads it, against transformers' own forward."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AttentionMaskInterface, AutoModelForCausalLM, PreTrainedModel

from mappa_core.core.errors import LearnerError
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.config import AlgorithmConfig, LearnerConfig, LoraConfig, MismatchConfig
from mappa_core.train.learners import model
from mappa_core.train.learners.families import FAMILIES, read_family, tiny_model
from mappa_core.train.learners.reading import ATTENTION, Reading
from mappa_core.train.learners.self_check import LARGEST, choose_reading
from mappa_core.train.learners.torch_learner import TorchLearner
from mappa_core.train.prefix_tree import build
from tests.integration.train.learner.samples import BASE, action, samples

PADDED = {
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "mamba", "nemotron_h"),
    *("lfm2", "bloom", "falcon", "deepseek_v32", "stablelm", "nemotron"),
}
CONFIG = LearnerConfig(
    device="cpu", dtype="float32", lora=LoraConfig(rank=4, alpha=8), learning_rate=1e-2
)
FROM_SAMPLER = AlgorithmConfig(mismatch=MismatchConfig(importance="none"))
SHARED = tuple(range(3, 23))
"""Longer than the window of 8."""


def given() -> list[ScoredAction]:
    """Actions that share a prompt and beginnings, and one that shares nothing."""
    prompts = [SHARED, SHARED, (*SHARED, 40, 41, 42), tuple(range(60, 75))]
    responses = [(50, 51, 52, 53), (50, 51, 54), (55,), tuple(range(80, 92))]
    pairs = zip(prompts, responses, strict=True)
    return [action(p, r, i, score=1.0) for i, (p, r) in enumerate(pairs)]


def one_by_one(plain: torch.nn.Module, one: ScoredAction) -> Tensor:
    """Log-probabilities of the action's tokens by the textbook; (T,)."""
    ids = torch.tensor([[*one.prompt_token_ids, *one.token_ids]])
    logits = plain(input_ids=ids).logits[0, len(one.prompt_token_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]


def read(reading: Reading, actions: list[ScoredAction], temperature: float = 1.0) -> Tensor:
    """All of them in one pass, in order."""
    return reading.read(
        build([a.prompt_token_ids for a in actions], [a.token_ids for a in actions]), temperature
    ).logprobs


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_read_as_it_reads_itself(family: str) -> None:
    plain, mine = tiny_model(family), tiny_model(family)
    plain.set_attn_implementation("eager")
    reading = choose_reading(mine, CONFIG)
    assert reading.way == ("padded" if family in PADDED else "tree")
    with torch.no_grad():
        expected = torch.cat([one_by_one(plain, one) for one in given()])
        # float32 rounds otherwise with other CPUs' kernels: 6e-6 of a log-prob was seen.
        torch.testing.assert_close(read(reading, given()), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_the_bench_finds_a_family_read_as_exactly(family: str) -> None:
    found = read_family(family)
    assert found.way == ("padded" if family in PADDED else "tree")
    assert found.gap <= LARGEST


TREES = ("llama", "mistral", "gemma2", "gpt_oss", "granite", "cohere2", "phi", "deepseek_v3")


@pytest.mark.parametrize(
    ("family", "way"),
    [(family, way) for family in TREES for way in ("tree", "padded")]
    + [("qwen3_5_text", "padded"), ("bloom", "padded")],
)
def test_gradients_are_the_models_own(family: str, way: str) -> None:
    plain, mine = tiny_model(family), tiny_model(family)
    plain.set_attn_implementation("eager")
    reading = choose_reading(mine, CONFIG.model_copy(update={"reading": way}))
    weights = torch.linspace(-1, 1, sum(len(one.token_ids) for one in given()))
    (torch.cat([one_by_one(plain, one) for one in given()]) * weights).sum().backward()
    (read(reading, given()) * weights).sum().backward()
    expected = dict(plain.named_parameters())
    for name, parameter in mine.named_parameters():
        wanted = expected[name].grad
        assert (parameter.grad is None) == (wanted is None), name
        if parameter.grad is not None and wanted is not None:
            torch.testing.assert_close(parameter.grad, wanted, atol=1e-5, rtol=1e-3)


def no_mask(**_: object) -> None:
    """Say that a layer sees all."""


@pytest.fixture
def blind() -> Iterator[None]:
    """The tree as it was read before: every layer sees all ancestors, whatever its window."""
    sighted = AttentionMaskInterface()[ATTENTION]
    AttentionMaskInterface.register(ATTENTION, no_mask)
    yield
    AttentionMaskInterface.register(ATTENTION, sighted)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "llama4_text"])
def test_a_tree_read_without_its_window_is_found_out(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_reading(tiny_model(family), CONFIG).way == "padded"
    assert "nats off its forward: it is read padded, which is slower" in caplog.text
    with pytest.raises(LearnerError, match=r"by tree is .* nats off .* or learner.reading=auto"):
        choose_reading(tiny_model(family), CONFIG.model_copy(update={"reading": "tree"}))


def test_a_window_wider_than_the_check_is_not_changed_by_it() -> None:
    mine = tiny_model("mistral")
    choose_reading(mine, CONFIG)
    assert mine.config.sliding_window == 8


def test_a_recurrent_model_is_no_tree() -> None:
    with pytest.raises(LearnerError, match=r"Qwen3_5ForCausalLM read by tree is .* nats off"):
        choose_reading(tiny_model("qwen3_5_text"), CONFIG.model_copy(update={"reading": "tree"}))


def test_a_model_that_padding_changes_is_refused() -> None:
    def mixed(_layer: torch.nn.Module, _given: object, states: Tensor) -> Tensor:
        """Let every token see what else is in its batch."""
        return states + states.mean(dim=(0, 1))

    mine = tiny_model("llama")
    mine.get_submodule("model.layers.0").register_forward_hook(mixed)
    with pytest.raises(LearnerError, match=r"padded .* nats off .*: choose another model$"):
        choose_reading(mine, CONFIG)


def plain_model(directory: Path, checkpoint: str) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    return PeftModel.from_pretrained(base, checkpoint)


@pytest.mark.parametrize(
    ("family", "padded"), [("mistral", 0.0), ("gpt_oss", 0.0), ("qwen3_5_text", 1.0)]
)
def test_the_learner_trains_it_by_transformers_own_numbers(
    family: str, padded: float, tmp_path: Path
) -> None:
    base: PreTrainedModel = tiny_model(family)
    base.save_pretrained(tmp_path / family)
    learner = TorchLearner(tmp_path / family, tmp_path / "checkpoints", CONFIG, threads=1)
    base.set_attn_implementation("eager")
    with torch.no_grad():
        before = [tuple(one_by_one(base, one).tolist()) for one in given()]
    assert_close(learner.logprobs(BASE, given()), before)

    batch: list[TrainingSample] = samples(given(), before, [1.0, -1.0, 0.5, -0.5])
    report = learner.update(BASE, batch, FROM_SAMPLER, total_steps=2, seed=1)
    # On the policy that sampled all ratios are 1: what is left is the trainer's own rounding.
    assert report.metrics["mismatch_kl"] < 1e-9
    assert report.metrics["clip_fraction"] == 0
    assert report.metrics["read_padded"] == padded

    plain = plain_model(tmp_path / family, report.checkpoint.directory)
    with torch.no_grad():
        after = [tuple(one_by_one(plain, one).tolist()) for one in given()]
    assert_close(learner.logprobs(report.policy, given()), after)
    assert after != before


def assert_close(actual: tuple[tuple[float, ...], ...], expected: list[tuple[float, ...]]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=2e-5)


def test_an_adapter_goes_on_the_decoders_linear_layers_alone(tmp_path: Path) -> None:
    # Mixtral's experts are fused and its router is no plain layer: neither could be merged.
    tiny_model("mixtral").save_pretrained(tmp_path)
    names = model.trained_parameters(model.load(tmp_path, CONFIG, fused=True))
    assert {name.split(".lora_")[0].rsplit(".", 1)[1] for name in names} == {
        *("q_proj", "k_proj", "v_proj", "o_proj")
    }


@pytest.mark.parametrize(
    ("family", "weights", "message"),
    [
        ("deepseek_v3", "lora", "DeepseekV3ForCausalLM's fused experts, which cannot be merged"),
        ("gpt2", "lora", "GPT2LMHeadModel has no plain linear layers .* learner.weights=full"),
        ("mamba", "lora", "no adapter for MambaForCausalLM: .*out_proj"),
        ("mixtral", "full", "keeps weights on disk in another layout .* learner.weights=lora"),
    ],
)
def test_what_could_not_be_served_is_refused_at_load(
    family: str, weights: str, message: str, tmp_path: Path
) -> None:
    tiny_model(family).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match=message):
        model.load(tmp_path, CONFIG.model_copy(update={"weights": weights}), fused=True)
