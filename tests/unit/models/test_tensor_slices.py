"""Files read part by part, against the safetensors library's own reading and writing."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mappa_core.models.tensor_slices import StreamedTensors, TensorSlices, write_streamed

GIVEN = {
    "layer.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "a": torch.tensor(7.0),
    "z.empty": torch.empty(0, 5),
}


def streamed(tensors: dict[str, torch.Tensor]) -> StreamedTensors:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return StreamedTensors(shapes=shapes, tensors=(tensors[name] for name in sorted(tensors)))


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_streamed_files_have_the_librarys_bytes(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    save_file(GIVEN, tmp_path / "theirs", metadata=metadata)
    write_streamed(tmp_path / "ours", streamed(GIVEN), metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert streamed(GIVEN).nbytes == 13 * 4


def test_nothing_is_a_file_too(tmp_path: Path) -> None:
    write_streamed(tmp_path / "ours", streamed({}))
    assert load_file(tmp_path / "ours") == {}


def test_a_tensor_must_be_what_was_announced(tmp_path: Path) -> None:
    announced = StreamedTensors(shapes={"a": (3,)}, tensors=iter([torch.zeros(2)]))
    with pytest.raises(ValueError, match="a was announced as float32"):
        write_streamed(tmp_path / "ours", announced)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_parts_are_those_of_the_flattened_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = (torch.arange(30).reshape(5, 6) % 7).to(dtype)
    save_file({"first": torch.ones(3), "second": tensor}, tmp_path / "one")
    save_file({"first": torch.zeros(2)}, tmp_path / "two")
    slices = TensorSlices([tmp_path / "one", tmp_path / "two"])
    assert slices.shapes == {"first": (2,), "second": (5, 6)}
    assert torch.equal(slices.whole("second"), tensor)
    assert torch.equal(slices.part("second", 7, 11), tensor.view(-1)[7:18])
    assert slices.part("second", 30, 0).shape == (0,)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(GIVEN, file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: it ends within layer"):
        TensorSlices([file]).whole("layer.weight")
    for damaged in (whole[:40], b"", b"\xff" * 64):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged: no header"):
            TensorSlices([file])
