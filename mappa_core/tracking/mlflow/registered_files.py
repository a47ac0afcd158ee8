"""The files of a checkpoint that a registered version has: verified, and as precise as asked for.

checkpoint on disk (float32, exact: what a resumed run reads)
  └─ rounded to bfloat16 ─▶ adapter_config.json, adapter_model.safetensors
                            (full weights: config.json, model.safetensors)
"""

import hashlib
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from safetensors import safe_open

from mappa_core.core.errors import TrackerError
from mappa_core.core.records.updates import Checkpoint
from mappa_core.models.layout import layout_of

RegisteredDtype = Literal["bfloat16", "float32"]

_DTYPE_KEYS = ("dtype", "torch_dtype")
"""In a model's config.json; what loads it takes its weights' type from there."""
_ALIGNMENT = 8


@contextmanager
def registered_files(
    checkpoint: Checkpoint, dtype: RegisteredDtype
) -> Generator[tuple[Path, Path]]:
    """Give configuration and weights of `checkpoint` as they are to be registered.

    Rounded files are there for the block. Weights that are not float32 stay as they are.

    Raises:
        TrackerError: As `loadable_files`.
    """
    config, weights = loadable_files(checkpoint)
    if dtype == "float32" or not _all_float32(weights):
        yield config, weights
        return
    with TemporaryDirectory(prefix="mappa-registered-") as name:
        rounded = Path(name) / config.name, Path(name) / weights.name
        told = json.loads(config.read_bytes())
        told |= {key: "bfloat16" for key in _DTYPE_KEYS if key in told}
        rounded[0].write_text(json.dumps(told, indent=2, sort_keys=True))
        write_bfloat16(weights, rounded[1])
        yield rounded


def loadable_files(checkpoint: Checkpoint) -> tuple[Path, Path]:
    """The files of `checkpoint` that `peft` or `transformers` loads, verified.

    The optimiser's state stays behind: it is for resuming, not for serving.

    Raises:
        TrackerError: A file is missing, or the weights are not those that were written down.
    """
    directory = Path(checkpoint.directory)
    layout = layout_of(directory)
    config, weights = directory / layout.config, directory / layout.weights
    missing = [path.name for path in (config, weights) if not path.is_file()]
    if missing:
        raise TrackerError(f"checkpoint {directory} lacks {', '.join(missing)}: train it again")
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != checkpoint.sha256:
        raise TrackerError(
            f"{weights} is not what the store recorded (sha256 {found[:12]}, not "
            f"{checkpoint.sha256[:12]}): restore the file, or train it again"
        )
    return config, weights


def write_bfloat16(source: Path, target: Path) -> None:
    """Write a file of float32 tensors rounded to bfloat16, one tensor in memory at a time."""
    with safe_open(source, framework="np") as file, target.open("wb") as written:
        shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
        written.write(_header(shapes, file.metadata() or {}))
        for name in shapes:
            written.write(bfloat16_bits(file.get_tensor(name)).tobytes())


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, ties to even, as bits (uint16); a NaN stays one."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")


def _header(shapes: Mapping[str, list[int]], metadata: Mapping[str, str]) -> bytes:
    """The head of a safetensors file: its own length, then where each tensor lies, as JSON."""
    told: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, shape in shapes.items():
        end = at + 2 * int(np.prod(shape, dtype=np.int64))
        told[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _all_float32(weights: Path) -> bool:
    with safe_open(weights, framework="np") as file:
        return all(file.get_slice(name).get_dtype() == "F32" for name in file.keys())  # noqa: SIM118
