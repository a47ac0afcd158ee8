"""Writes checkpoints to disk and reads them: whole and verified, or not there.

    <checkpoints>/<run id>/<agent>/<step>/
        adapter_config.json          PEFT's own format, so that any PEFT program can load it
        adapter_model.safetensors    (full weights: config.json, model.safetensors)
        optimizer.safetensors        AdamW's moments
        manifest.json                the SHA-256 of each of the above

A checkpoint is written to a sibling of its place, synced to the disk, and renamed. What a killed
process left there goes with the step's next write or removal.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor

from mappa_core.core.errors import DiskFull, LearnerError
from mappa_core.models import tensor_files
from mappa_core.models.layout import ADAPTER, MANIFEST, WHOLE_MODEL, layout_of
from mappa_core.models.tensor_files import sha256_file
from mappa_core.models.tensor_slices import StreamedTensors, write_streamed

OPTIMIZER = "optimizer.safetensors"

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What was written, for the checkpoint's record."""

    sha256: str
    """Of the weights' file."""
    size_bytes: int
    """Of all files."""


def write(
    directory: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor] | StreamedTensors,
    optimizer: Mapping[str, Tensor] | StreamedTensors,
) -> Saved:
    """Write a checkpoint, replacing what an update that was not recorded may have left there.

    Raises:
        DiskFull: It does not fit.
        LearnerError: The directory cannot be written.
    """
    layout = ADAPTER if "peft_type" in config else WHOLE_MODEL
    try:
        with _replacing(directory) as sibling:
            (sibling / layout.config).write_text(json.dumps(config, indent=2, sort_keys=True))
            _write(sibling / layout.weights, weights, {"format": "pt"})
            _write(sibling / OPTIMIZER, optimizer)
            hashes = {file.name: sha256_file(file) for file in sibling.iterdir()}
            manifest = json.dumps({"sha256": hashes}, indent=2, sort_keys=True)
            (sibling / MANIFEST).write_text(manifest)
            size_bytes = sum(file.stat().st_size for file in sibling.iterdir())
    except OSError as error:
        if error.errno in NO_ROOM:
            mebibytes = (_nbytes(weights) + _nbytes(optimizer)) / 2**20
            raise DiskFull(
                f"no room for checkpoint {directory}: free {mebibytes:.0f} MiB, then resume the run"
            ) from error
        raise LearnerError(f"cannot write checkpoint {directory}: {error.strerror}") from error
    return Saved(sha256=hashes[layout.weights], size_bytes=size_bytes)


def _write(
    path: Path,
    tensors: Mapping[str, Tensor] | StreamedTensors,
    metadata: Mapping[str, str] | None = None,
) -> None:
    if isinstance(tensors, StreamedTensors):
        write_streamed(path, tensors, metadata)
    else:
        tensor_files.write(path, tensors, metadata)


def _nbytes(tensors: Mapping[str, Tensor] | StreamedTensors) -> int:
    if isinstance(tensors, StreamedTensors):
        return tensors.nbytes
    return sum(tensor.nbytes for tensor in tensors.values())


def remove(directory: Path) -> None:
    """Remove a checkpoint at once: one half removed is not there.

    Raises:
        LearnerError: It is there and stays.
    """
    _remove_leftovers(directory)
    aside = directory.with_name(f".{directory.name}-retired")
    try:
        directory.rename(aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LearnerError(f"cannot remove checkpoint {directory}: {error.strerror}") from error
    shutil.rmtree(aside, ignore_errors=True)


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Read the weights' tensors, as they were written.

    Raises:
        LearnerError: A file is missing or damaged.
    """
    return load(_verified(directory, layout_of(directory).weights))


def read_optimizer(directory: Path) -> dict[str, Tensor]:
    """Read the optimiser's tensors, as they were written.

    Raises:
        LearnerError: A file is missing or damaged.
    """
    return load(_verified(directory, OPTIMIZER))


def verify(directory: Path) -> None:
    """Read all of a checkpoint's files, none of them into memory.

    Raises:
        LearnerError: A file is missing or damaged.
    """
    with _readable(directory):
        for name, expected in _hashes(directory).items():
            _check(directory / name, sha256_file(directory / name), expected)


def _verified(directory: Path, name: str) -> bytes:
    """Read a file's bytes, if they are those the manifest names."""
    with _readable(directory):
        expected = _hashes(directory)[name]
        data = (directory / name).read_bytes()
        _check(directory / name, hashlib.sha256(data).hexdigest(), expected)
        return data


def _hashes(directory: Path) -> dict[str, str]:
    return json.loads((directory / MANIFEST).read_bytes())["sha256"]


def _check(file: Path, found: str, expected: str) -> None:
    if found != expected:
        raise _unusable(file.parent, file, "damaged (its SHA-256 is not the recorded one)")


@contextmanager
def _readable(directory: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        # A disk that cannot read says so without a name.
        file = Path(error.filename or directory)
        raise _unusable(directory, file, f"unreadable ({error.strerror})") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable(directory, directory / MANIFEST, "damaged") from error


def _unusable(directory: Path, file: Path, problem: str) -> LearnerError:
    run = directory.parents[1].name
    return LearnerError(
        f"checkpoint file {file} is {problem}: restore it, or go on from the last whole checkpoint "
        f"in a new run: mappa train --fork {run}"
    )


@contextmanager
def _replacing(directory: Path) -> Generator[Path]:
    """Give a sibling to fill with files; it is synced and takes the place of `directory`."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(directory)
    sibling = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield sibling
        # Those of safetensors and of `mkdtemp` are for their owner alone.
        for file in sibling.iterdir():
            file.chmod(0o644)
            _sync(file)
        sibling.chmod(0o755)
        _sync(sibling)
        shutil.rmtree(directory, ignore_errors=True)
        sibling.rename(directory)
        _sync(directory.parent)
    finally:
        shutil.rmtree(sibling, ignore_errors=True)


def _remove_leftovers(directory: Path) -> None:
    """Remove what a killed write or removal left next to it; an update is computed once."""
    # A place that is no folder is named by what comes next.
    with suppress(OSError):
        for left in directory.parent.iterdir():
            if left.name.startswith(f".{directory.name}-"):
                shutil.rmtree(left, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
