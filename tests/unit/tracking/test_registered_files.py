"""What is registered in bfloat16 is what torch would round, in files that others open."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mappa_core.tracking.mlflow.registered_files import bfloat16_bits, write_bfloat16


@given(st.lists(st.floats(width=32), min_size=1))
def test_every_number_is_rounded_as_torch_rounds_it(values: list[float]) -> None:
    given_values = np.array(values, dtype=np.float32)
    found = torch.from_numpy(bfloat16_bits(given_values).view(np.int16)).view(torch.bfloat16)
    expected = torch.from_numpy(given_values).to(torch.bfloat16)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(found.isnan(), expected.isnan())


def test_a_file_keeps_its_names_shapes_and_metadata(tmp_path: Path) -> None:
    tensors = {
        "b.weight": torch.randn(300, 50),
        "a.bias": torch.randn(7),
        "scalar": torch.tensor(1 / 3),
        "empty": torch.empty(0, 4),
    }
    save_file(tensors, tmp_path / "exact.safetensors", {"format": "pt"})
    write_bfloat16(tmp_path / "exact.safetensors", tmp_path / "rounded.safetensors")
    found = load_file(tmp_path / "rounded.safetensors")
    assert {*found} == {*tensors}
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor.to(torch.bfloat16))
    exact, rounded = ((tmp_path / f"{n}.safetensors").stat().st_size for n in ("exact", "rounded"))
    assert rounded < 0.51 * exact
