"""A run's last weights are here and in its storage before it goes on from them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.app.checks import check_weights
from mappa_core.cluster.storage import Storage
from mappa_core.core.errors import ClusterError, LearnerError
from mappa_core.models.tensor_files import sha256_file
from tests.builders import make_policy, make_run


def saved(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "adapter_model.safetensors").write_text("w")
    hashes = {"adapter_model.safetensors": sha256_file(directory / "adapter_model.safetensors")}
    (directory / "manifest.json").write_text(json.dumps({"sha256": hashes}))
    return directory


def test_what_is_missing_in_one_place_comes_from_the_other(tmp_path: Path) -> None:
    directory = saved(tmp_path / "checkpoints" / "run" / "solver" / "1")
    policy = replace(make_policy(make_run(), "solver", 1), adapter_uri=str(directory))
    storage = Storage(url=f"file://{tmp_path}/shared", root=str(tmp_path / "checkpoints"))
    check_weights(policy, storage)
    assert storage.has(directory)
    shutil.rmtree(directory)
    with pytest.raises(LearnerError):
        check_weights(policy)
    check_weights(policy, storage)
    assert (directory / "adapter_model.safetensors").read_text() == "w"
    storage.remove(directory)
    shutil.rmtree(directory)
    with pytest.raises(ClusterError, match="has no checkpoint run/solver/1"):
        check_weights(policy, storage)
