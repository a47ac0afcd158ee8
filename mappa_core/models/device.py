"""Which device and type a configuration means; apart, because torch alone imports quickly."""

import os
import platform
from collections import Counter
from typing import Literal

import torch

from mappa_core.core.errors import ConfigError


def resolve_device(device: str) -> str:
    """`cuda` where `auto` finds a GPU, otherwise `cpu`; anything else as it is.

    Raises:
        ConfigError: `cuda` is asked for by name and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, and torch sees no GPU here: set it to cpu or auto")
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_dtype(dtype: Literal["float32", "bfloat16", "auto"], device: str) -> torch.dtype:
    """float32 where `auto` is for a CPU, bfloat16 for a GPU; anything else as it is."""
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return torch.float32 if dtype == "float32" else torch.bfloat16


def device_kind() -> str:
    """Name what this machine computes on, e.g. `2 x NVIDIA H100` or `x86_64 AVX512, 8 cores`."""
    if not torch.cuda.is_available():
        instructions = torch.backends.cpu.get_cpu_capability()
        return f"{platform.machine()} {instructions}, {os.cpu_count()} cores"
    found = Counter(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    return ", ".join(f"{many} x {name}" for name, many in found.items())
