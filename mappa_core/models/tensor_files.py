"""Safetensors files, whose library has one error of its own for everything: here as Python's.

What the system refused is an OSError that names the file and says why, as for any other file; what
is no such file, or only a part of one, is a ValueError.
"""

import hashlib
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

_SYSTEM_SAID = re.compile(r"\(os error (\d+)\)")


@contextmanager
def plain_errors(place: Path | str) -> Generator[None]:
    """Inside, what safetensors says of `place` is raised as ValueError or OSError.

    Raises:
        ValueError: A file is damaged.
        OSError: It cannot be read or written.
    """
    try:
        yield
    except SafetensorError as error:
        said = _SYSTEM_SAID.search(str(error))
        if said is None:
            raise ValueError(f"{place} is damaged: {error}") from error
        number = int(said[1])
        raise OSError(number, os.strerror(number), str(place)) from error


@contextmanager
def opened(path: Path) -> Generator[safe_open]:
    """A file whose tensors are read one by one; raises as `plain_errors` says."""
    with plain_errors(path), safe_open(path, framework="pt") as file:
        yield file


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, held in memory twice meanwhile; raises as `plain_errors` says.

    safetensors 0.8 leaks 64 bytes for each tensor it maps, and none where it is given the bytes.
    """
    with plain_errors(path):
        return load(path.read_bytes())


def write(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file from where the tensors lie, without a copy; raises as `plain_errors` says."""
    with plain_errors(path):
        save_file(dict(tensors), path, metadata=dict(metadata) if metadata else None)


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
