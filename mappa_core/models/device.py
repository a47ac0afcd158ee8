"""Which device and type a configuration means.

Torch is imported where it has to be asked: that takes a second or two, which a command that starts
servers first has while these start.
"""

import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from mappa_core.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

BFLOAT16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""A CPU's extensions that multiply bfloat16, of Intel, AMD and Arm, by torch's names for them."""


def resolve_device(device: str) -> str:
    """`cuda` where `auto` finds a GPU, otherwise `cpu`; anything else as it is.

    Raises:
        ConfigError: `cuda` is asked for by name and there is none.
    """
    if device == "cuda" and not _sees_gpu():
        raise ConfigError("device=cuda, and torch sees no GPU here: set it to cpu or auto")
    if device != "auto":
        return device
    return "cuda" if _sees_gpu() else "cpu"


def _sees_gpu() -> bool:
    # A build for CPUs sees none.
    if "torch" not in sys.modules and version("torch").endswith("+cpu"):
        return False
    import torch

    return torch.cuda.is_available()


def resolve_dtype(
    dtype: Literal["auto", "native", "float32", "bfloat16"],
    device: str,
    capabilities: Mapping[str, object] | None = None,
) -> "torch.dtype":
    """float32 where `auto` (once `native`) is for a CPU without units for bfloat16's products.

    It is bfloat16 anywhere else; a type by its name is that type. `capabilities` are those of the
    CPU, by torch's names for them; None: this one's.
    """
    import torch

    if dtype in ("auto", "native"):
        dtype = "bfloat16" if device != "cpu" or cpu_has_bfloat16(capabilities) else "float32"
    return torch.float32 if dtype == "float32" else torch.bfloat16


def cpu_has_bfloat16(capabilities: Mapping[str, object] | None = None) -> bool:
    """Tell whether a CPU multiplies bfloat16 itself; any other one only imitates it, slowly."""
    import torch

    found = torch.cpu.get_capabilities() if capabilities is None else capabilities
    return any(found.get(unit, False) for unit in BFLOAT16_UNITS)


def visible_gpus() -> tuple[str, ...]:
    """List the GPUs that this process sees, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = torch.cuda.device_count()
    return tuple(names.split(",")[:found]) if names else tuple(map(str, range(found)))


def device_kind() -> str:
    """Name what this machine computes on, e.g. `2 x NVIDIA H100` or `x86_64 AVX512, 8 cores`."""
    import torch

    if not torch.cuda.is_available():
        instructions = torch.backends.cpu.get_cpu_capability()
        return f"{platform.machine()} {instructions}, {os.cpu_count()} cores"
    found = Counter(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    return ", ".join(f"{many} x {name}" for name, many in found.items())
