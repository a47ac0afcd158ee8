"""Merging adapters: against PEFT's own arithmetic, and against numbers worked by hand."""

import json
import os
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from mappa_core.models.device import cpu_has_bfloat16, resolve_device, resolve_dtype
from mappa_core.models.tensor_files import sha256_file
from mappa_core.models.weights import (
    LowRankUpdate,
    ServedWeights,
    load_base,
    read_adapter,
)
from tests.tiny_model import save_adapter, save_tiny_model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "base")


def test_an_update_is_scale_times_up_times_down() -> None:
    update = LowRankUpdate(
        down=torch.tensor([[1.0, 2.0]]), up=torch.tensor([[3.0], [4.0]]), scale=0.5
    )
    merged = update.added_to(torch.tensor([[10.0, 20.0], [30.0, 40.0]]), torch.float32)
    assert merged.tolist() == [[11.5, 23.0], [32.0, 44.0]]


def served(base: Path, checkpoint: Path | None, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return dict(ServedWeights(base, checkpoint, dtype).tensors())


def test_merged_weights_are_those_of_peft(base: Path, tmp_path: Path) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    ids = torch.tensor([[1, 50, 60, 70, 2]])
    adapted = PeftModel.from_pretrained(load_base(base, torch.float32, "cpu"), str(adapter))
    plain = load_base(base, torch.float32, "cpu")
    with torch.inference_mode():
        wanted = adapted.merge_and_unload()(ids).logits
        unchanged = plain(ids).logits
        plain.load_state_dict(served(base, adapter, torch.float32), strict=False)
        merged = plain(ids).logits
    torch.testing.assert_close(merged, wanted, rtol=0, atol=1e-5)
    assert (merged - unchanged).abs().max() > 0.1


def test_whole_weights_are_those_of_the_checkpoint_without_what_lies_beside_them(
    base: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text("{}")
    written = {name: each + 1 for name, each in load_file(base / "model.safetensors").items()}
    save_file(written, whole / "model.safetensors")
    save_file({"moment": torch.zeros(2)}, whole / "optimizer.safetensors")
    sent = served(base, whole, torch.float32)
    assert sent.keys() == written.keys()
    assert all(torch.equal(sent[name], written[name]) for name in written)


def test_weights_say_their_shapes_and_what_is_missing(base: Path, tmp_path: Path) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    for checkpoint in (adapter, None):
        weights = ServedWeights(base, checkpoint, torch.float32)
        shapes = [(name, tuple(tensor.shape)) for name, tensor in weights.tensors()]
        assert shapes == [*weights.shapes()]
    with pytest.raises(FileNotFoundError, match="no model"):
        ServedWeights(tmp_path / "nowhere", adapter, torch.float32)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ServedWeights(base, tmp_path / "nowhere", torch.float32)


def test_an_update_is_served_whole_over_a_base_that_lies_in_bfloat16(
    base: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(base, tmp_path / "adapter", size=1e-4)
    whole = load_file(base / "model.safetensors")
    rounded = {name: tensor.bfloat16() for name, tensor in whole.items()}
    save_file(rounded, base / "model.safetensors")
    for dtype in (torch.float32, torch.bfloat16):
        sent = served(base, adapter, dtype)
        for name, update in read_adapter(adapter).items():
            learnt = rounded[name].float() + update.scale * (update.up @ update.down)
            torch.testing.assert_close(sent[name], learnt.to(dtype), rtol=0, atol=1e-7)


def test_sharded_models_are_merged_file_by_file(base: Path, tmp_path: Path) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    whole = served(base, adapter, torch.float32)
    names = sorted(tensors := load_file(base / "model.safetensors"))
    for number, part in enumerate((names[:7], names[7:])):
        save_file({name: tensors[name] for name in part}, base / f"model-{number}.safetensors")
    (base / "model.safetensors").unlink()
    sharded = served(base, adapter, torch.float32)
    assert sharded.keys() == whole.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_an_adapter_of_another_model_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    tensors = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace("layers.1", "layers.9"): tensor for name, tensor in tensors.items()}
    save_file(renamed, adapter / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"changes model\.layers\.9.* has no such weight"):
        ServedWeights(base, adapter, torch.float32)


def test_a_damaged_model_is_an_error_of_pythons_own(base: Path) -> None:
    os.truncate(base / "model.safetensors", 10_000)
    for read in (
        lambda: load_base(base, torch.float32, "cpu"),
        lambda: served(base, None, torch.float32),
    ):
        with pytest.raises(ValueError, match=r"base.* is damaged: .*not fully covered"):
            read()


def test_an_adapter_of_any_rank_fits_and_one_of_another_shape_is_refused(
    base: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    parts = {part: next(name for name in tensors if part in name) for part in ("lora_A", "lora_B")}
    lower = {
        parts["lora_A"]: tensors[parts["lora_A"]][:3],
        parts["lora_B"]: tensors[parts["lora_B"]][:, :3],
    }
    save_file(tensors | {name: each.contiguous() for name, each in lower.items()}, file)
    assert len(served(base, adapter, torch.float32)) > 1

    narrow = tensors[parts["lora_A"]][:, :5].contiguous()
    save_file(tensors | {parts["lora_A"]: narrow}, file)
    with pytest.raises(ValueError, match=r"changes model\.layers\..* of shape \(\d+, 5\)"):
        ServedWeights(base, adapter, torch.float32)


def test_rank_stabilised_adapters_scale_by_the_root_of_the_rank(base: Path, tmp_path: Path) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert {update.scale for update in read_adapter(adapter).values()} == {2.0}
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"use_rslora": True}))
    scales = {round(update.scale, 6) for update in read_adapter(adapter).values()}
    assert scales == {round(16 / 8**0.5, 6)}


@pytest.mark.parametrize("extra", [{"use_dora": True}, {"alpha_pattern": {"q_proj": 4}}])
def test_other_kinds_of_adapter_are_refused(
    base: Path, tmp_path: Path, extra: dict[str, object]
) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | extra))
    with pytest.raises(ValueError, match="not a plain LoRA adapter"):
        read_adapter(adapter)


def test_sha256_is_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_file(tmp_path / "file") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_a_named_device_is_taken_as_it_is() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_type_is_native_where_the_processor_says_so() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    units = {"avx512_bf16", "amx_bf16", "bf16"} & set(flags)
    assert cpu_has_bfloat16() == bool(units)
    native = torch.bfloat16 if units else torch.float32
    assert resolve_dtype("auto", "cpu") is native


@pytest.mark.parametrize("unit", ["avx512_bf16", "amx_bf16", "bf16", None])
def test_a_cpu_without_units_computes_in_float32_unless_it_is_told(unit: str | None) -> None:
    found = {"avx512_f": True, "avx512_bf16": False, **({unit: True} if unit else {})}
    best = torch.bfloat16 if unit else torch.float32
    assert resolve_dtype("auto", "cpu", found) is best
    assert resolve_dtype("native", "cpu", found) is best
    assert resolve_dtype("float32", "cpu", found) is torch.float32
    assert resolve_dtype("bfloat16", "cpu", found) is torch.bfloat16
    assert resolve_dtype("auto", "cuda", found) is torch.bfloat16
    assert resolve_dtype("float32", "cuda") is torch.float32
