"""A checkpoint is there whole or not at all, whatever was killed on the way to it."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from mappa_core.core.errors import LearnerError
from mappa_core.train import checkpoints

CONFIG = {"peft_type": "LORA"}
WEIGHTS = {"w": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(3)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "checkpoints" / "run" / "solver" / "1"
    checkpoints.write(place, CONFIG, WEIGHTS, {"moment": torch.zeros(3)})
    return place


def leave_half(directory: Path) -> None:
    """What a killed process leaves."""
    directory.mkdir()
    (directory / "optimizer.safetensors").write_bytes(b"half")


def test_the_files_are_safetensors_own_and_everybodys_to_read(place: Path) -> None:
    written = (place / "adapter_model.safetensors").read_bytes()
    assert written == save(WEIGHTS, metadata={"format": "pt"})
    assert {file.stat().st_mode & 0o777 for file in place.iterdir()} == {0o644}
    checkpoints.verify(place)


@pytest.mark.parametrize("what", [checkpoints.remove, None])
def test_what_a_killed_write_or_removal_left_goes_with_the_next(place: Path, what: object) -> None:
    for name in (".1-k3j_x", ".1-retired", ".12-abcd", ".2-retired"):
        leave_half(place.with_name(name))
    if what is None:
        checkpoints.write(place, CONFIG, WEIGHTS, {})
    else:
        checkpoints.remove(place)
    left = {path.name for path in place.parent.iterdir()}
    assert left == {".12-abcd", ".2-retired"} | ({"1"} if what is None else set())


def test_a_checkpoint_that_is_gone_is_removed_again(place: Path) -> None:
    checkpoints.remove(place)
    checkpoints.remove(place)
    assert not place.exists()


def test_a_disk_that_cannot_read_is_named_though_it_names_no_file(place: Path) -> None:
    weights = place / "adapter_model.safetensors"
    weights.unlink()
    weights.symlink_to("/proc/self/mem")  # opens, and its first page cannot be read
    for read in (checkpoints.read_weights, checkpoints.verify):
        with pytest.raises(
            LearnerError, match=r"/1 is unreadable \(Input/output error\).*--fork run$"
        ):
            read(place)


def test_a_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "solver")
    with pytest.raises(LearnerError, match=r"cannot write checkpoint .*: (File|Not a)"):
        checkpoints.write(tmp_path / "solver" / "1", CONFIG, WEIGHTS, {})
    with pytest.raises(LearnerError, match=r"cannot remove checkpoint .*: Not a directory"):
        checkpoints.remove(tmp_path / "solver" / "1")
