"""Checkpoints in a storage are whole or not there, wherever they are fetched."""

import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mappa_core.cluster.storage import Storage
from mappa_core.core.errors import ClusterError

WEIGHTS, MOMENTS = "adapter_model.safetensors", "optimizer.safetensors"
FILES = {"adapter_config.json": "{}", WEIGHTS: "w", MOMENTS: "m"}


def saved(directory: Path, step: str = "one") -> Path:
    directory.mkdir(parents=True)
    for name, text in (FILES | {"manifest.json": step}).items():
        (directory / name).write_text(text)
    return directory


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


@pytest.fixture(params=["file", "s3", "gs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    root = str(tmp_path / "home" / "checkpoints")
    if request.param == "file":
        return Storage(url=f"file://{tmp_path}/shared", root=root)
    return Storage(url=request.getfixturevalue(f"{request.param}_bucket"), root=root)


@pytest.fixture(scope="module")
def s3_bucket() -> Iterator[str]:
    """A bucket of an S3 server on the loopback."""
    with pytest.MonkeyPatch.context() as patch, serving("moto.server", "-H", "127.0.0.1") as port:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        yield f"s3://runs/a?endpoint_override=127.0.0.1:{port}&scheme=http&allow_bucket_creation=true"


@pytest.fixture(scope="module")
def gs_bucket() -> Iterator[str]:
    """A bucket of a server of Google Cloud Storage's interface on the loopback."""
    options = ("start", "--host", "127.0.0.1", "--in-memory", "--default-bucket", "runs")
    with serving("gcp_storage_emulator", *options) as port:
        yield f"gs://anonymous@runs/a?endpoint_override=127.0.0.1:{port}&scheme=http"


@contextmanager
def serving(module: str, *options: str) -> Iterator[int]:
    """A server in a process of its own, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", module, *options, "--port", str(port)]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(words, stdout=nowhere, stderr=nowhere) as server:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert server.poll() is None
                    time.sleep(0.1)
            yield port
        finally:
            server.kill()


def test_what_is_stored_is_fetched_elsewhere(storage: Storage, tmp_path: Path) -> None:
    storage.check()
    directory = saved(Path(storage.root) / "run" / "solver" / "1")
    storage.upload(directory, directory)
    elsewhere = pickle.loads(pickle.dumps(storage))
    found = elsewhere.on_node(directory, tmp_path / "node")
    assert found.is_relative_to(tmp_path / "node")
    assert {name: (found / name).read_text() for name in FILES} == FILES
    served = elsewhere.on_node(directory, tmp_path / "node", without=(MOMENTS,))
    assert names(served) == {"adapter_config.json", WEIGHTS, "manifest.json"}


def test_a_checkpoint_that_was_computed_again_replaces_what_a_node_has(
    storage: Storage, tmp_path: Path
) -> None:
    directory = saved(Path(storage.root) / "run" / "solver" / "1")
    storage.upload(directory, directory)
    storage.on_node(directory, tmp_path / "node")
    storage.upload(directory, saved(tmp_path / "again", "two"))
    found = storage.on_node(directory, tmp_path / "node")
    assert (found / "manifest.json").read_text() == "two"


def test_one_without_a_manifest_is_not_there(storage: Storage, tmp_path: Path) -> None:
    directory = saved(Path(storage.root) / "run" / "solver" / "1")
    (directory / "manifest.json").unlink()
    storage.upload(directory, directory)
    with pytest.raises(ClusterError, match="has no checkpoint run/solver/1"):
        storage.on_node(directory, tmp_path / "node")


def test_a_node_keeps_an_agents_last_steps(storage: Storage, tmp_path: Path) -> None:
    for step in range(8, 12):
        directory = saved(Path(storage.root) / "run" / "solver" / str(step))
        storage.upload(directory, directory)
        found = storage.on_node(directory, tmp_path / "node")
    assert {step.name for step in found.parent.iterdir() if step.is_dir()} == {"10", "11"}
    # One that is older is there while it is asked for.
    assert storage.on_node(directory.with_name("8"), tmp_path / "node").is_dir()


def test_what_is_removed_is_gone(storage: Storage, tmp_path: Path) -> None:
    directory = saved(Path(storage.root) / "run" / "solver" / "1")
    storage.upload(directory, directory)
    storage.remove(directory)
    storage.remove(directory)
    with pytest.raises(ClusterError, match="has no checkpoint"):
        storage.fetch(directory, tmp_path / "elsewhere")


def test_what_cannot_be_written_to_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    storage = Storage(url=f"file://{tmp_path}/taken/shared", root=str(tmp_path))
    with pytest.raises(ClusterError, match=r"cannot use file://.*/taken/shared"):
        storage.check()
