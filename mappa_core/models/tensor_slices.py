"""Reads and writes safetensors files part by part, so that never more than a tensor is in memory.

The library maps a file into memory, where every page that was read counts until the file is closed;
here it is read. Format: https://github.com/huggingface/safetensors#format
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by their names in a file."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one tensor lies."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """Of its first byte in the file."""


class TensorSlices:
    """The tensors of safetensors files, read from the disk when they are asked for."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Read the files' headers; of two tensors of one name the later file's counts.

        Raises:
            ValueError: A file is damaged.
            OSError: It cannot be read.
        """
        self._places = {name: place for file in files for name, place in _places(file)}
        self.shapes = {name: place.shape for name, place in self._places.items()}

    def part(self, name: str, start: int, count: int) -> Tensor:
        """Read `count` elements of the flattened tensor from `start` on, (count,), as they lie.

        Raises:
            KeyError: There is none of that name.
            ValueError: The file is damaged.
            OSError: It cannot be read.
        """
        place = self._places[name]
        if not count:
            return torch.empty(0, dtype=place.dtype)
        data = bytearray(count * place.dtype.itemsize)
        with place.file.open("rb") as file:
            file.seek(place.offset + start * place.dtype.itemsize)
            if file.readinto(data) != len(data):
                raise ValueError(f"{place.file} is damaged: it ends within {name}")
        return torch.frombuffer(data, dtype=place.dtype)

    def whole(self, name: str) -> Tensor:
        """Read one tensor; raises as `part`."""
        shape = self.shapes[name]
        return self.part(name, 0, math.prod(shape)).view(shape)


def _places(path: Path) -> Iterator[tuple[str, _Place]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        try:
            # A damaged length must not be taken for the size of what to read.
            header = json.loads(file.read(min(length, path.stat().st_size)))
            entries = cast(Mapping[str, Mapping[str, Any]], header)
            for name, entry in entries.items():
                if name != "__metadata__":
                    dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
                    offset = _LENGTH_BYTES + length + entry["data_offsets"][0]
                    yield name, _Place(path, dtype, shape, offset)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: no header of tensors ({error!r})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedTensors:
    """Float32 tensors that are made one after the other, as they are written."""

    shapes: Mapping[str, tuple[int, ...]]
    tensors: Iterator[Tensor]
    """On the CPU, in the order of their sorted names; all must be taken where making one of them
    takes several processes."""

    @property
    def nbytes(self) -> int:
        """Sum their sizes."""
        return sum(map(_nbytes, self.shapes.values()))


def write_streamed(
    path: Path, streamed: StreamedTensors, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file whose bytes are those the library would write of the same tensors.

    Raises:
        OSError: It cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end, names = 0, sorted(streamed.shapes)
    for name in names:
        start, end = end, end + _nbytes(streamed.shapes[name])
        shape = list(streamed.shapes[name])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name, tensor in zip(names, streamed.tensors, strict=True):
            if tensor.shape != streamed.shapes[name] or tensor.dtype is not torch.float32:
                raise ValueError(f"{name} was announced as float32 {streamed.shapes[name]}")
            file.write(tensor.contiguous().view(-1).numpy().data)


def _nbytes(shape: tuple[int, ...]) -> int:
    return torch.float32.itemsize * math.prod(shape)
