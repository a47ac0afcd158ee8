"""What the server of a local coach takes, before it is started."""

from collections.abc import Collection, Iterator
from pathlib import Path

from mappa_core.coach.config import CoachConfig, CoachModelConfig
from mappa_core.core.settings import Settings
from mappa_core.models.package_table import PACKAGED
from mappa_core.models.serving.command import gpu_cache_bytes
from mappa_core.train.memory_items import GB, PHASES, Item
from mappa_core.train.memory_plan import STEP_BYTES

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
STORED_BYTES = 2
"""Of a weight on disk, as models are published."""
PACKED = 2
"""A CPU's kernels hold weights a second time, packed: 8.2 GB were measured of 3.6 GB and a GiB."""
PROCESS_BYTES = 0.5 * GB
"""Of one server beside weights and cache: vLLM and torch."""


def weights_folder(model: str, models: Path) -> Path | None:
    """Find where a coach's weights lie here; None for a hub id, or where they are missing."""
    folder = models / model if model in PACKAGED else Path(model).expanduser()
    return folder if folder.is_dir() else None


def weights_bytes(model: str, models: Path) -> int:
    """Sum a coach's weights as they are on disk, or will be; 0 where nothing says."""
    folder = weights_folder(model, models)
    if folder is None:
        return PACKAGED[model].weights_bytes if model in PACKAGED else 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def coach_need(coach: CoachModelConfig, settings: Settings) -> str:
    """Say what a local coach takes of memory and disk, and whether its weights are there."""
    folder, known = weights_folder(coach.model, settings.models), coach.model in PACKAGED
    if folder is None and not known:
        return "weights are not there; the first run fetches them"
    gpu, cpu = _gpu_bytes(coach, settings.models, 0) / GB, _host_bytes(coach, settings.models) / GB
    takes = f"its server takes {gpu:.1f} GB of a GPU, or {cpu:.1f} GB of memory on a CPU"
    if folder is None:
        disk = PACKAGED[coach.model].needed_bytes / GB
        how = f"`mappa coach-model {coach.model}` fetches them, which needs {disk:.0f} GB of disk"
        return f"weights are not there; {how}; {takes}"
    stored = weights_bytes(coach.model, settings.models) / GB
    return f"weights are there ({stored:.1f} GB in {folder}); {takes}"


def _host_bytes(coach: CoachModelConfig, models: Path) -> float:
    loaded = PACKED * _loaded_bytes(coach, models)
    return loaded + coach.server.kv_cache_gib * 2**30 + PROCESS_BYTES


def _gpu_bytes(coach: CoachModelConfig, models: Path, gpu_bytes: float) -> float:
    """Its weights, cache and a step; where nothing says its weights, the share kept free."""
    loaded, server = _loaded_bytes(coach, models), coach.server
    if not loaded:
        return server.gpu_memory_utilization * gpu_bytes
    folder = weights_folder(coach.model, models) or models / coach.model
    cache = gpu_cache_bytes(folder, server.max_model_length, server.kv_cache_gib, server.dtype)
    return loaded + cache + STEP_BYTES


def _loaded_bytes(coach: CoachModelConfig, models: Path) -> float:
    return weights_bytes(coach.model, models) * DTYPE_BYTES[coach.server.dtype] / STORED_BYTES


def coach_items(
    config: CoachConfig, models: Path, gpu_bytes: float, only: Collection[int] | None = None
) -> Iterator[Item]:
    """List the servers of local coaches for a memory plan: they stay while agents learn.

    Of a model that is neither there nor one of `mappa coach-model`, all but the weights is counted
    on a CPU, and its share on a GPU.

    Args:
        config: The coaches'.
        models: Where models lie.
        gpu_bytes: The GPU's; 0 without one.
        only: Which of them, by their places from 0; None for all.
    """
    for number, coach in enumerate(config.served):
        if only is not None and number not in only:
            continue
        what = f"the coach's server ({coach.model})"
        for phase in PHASES:
            if coach.server.device == "cpu" or not gpu_bytes:
                yield Item(phase, what, host_bytes=_host_bytes(coach, models))
            else:
                yield Item(phase, what, _gpu_bytes(coach, models, gpu_bytes))
