"""What every vLLM server of ours is started with, with the reason for each flag."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from mappa_core.models.shape import shape_of

_KEPT_VARIABLES = frozenset(
    (
        *("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("USER", "CC"),
    )
)
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "HF_", "VLLM_", "OMP_", "KMP_", "GOMP_")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
"""In the name of a variable that no server is told."""
_CPU_VARIABLES = {
    # glibc gives large blocks back to the kernel at once, and a batch's logits are large: most of
    # the time of a sampling step would go into touching fresh pages.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    # OpenMP threads that wait for each other by spinning burn the very core that the other one
    # needs, as soon as anything else runs: a busy machine was seven times slower for it. GNU's
    # spin for microseconds, which spares a decoding step most of some 300 wake-ups, and as servers
    # have a lower priority than what they share the cores with, nobody waits for them.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "2000",
    # All that vLLM still compiles is the rank of a token, a few milliseconds of a step; it would
    # cost each server seconds at its first request, and a machine without g++ the run.
    "TORCH_COMPILE_DISABLE": "1",
}
_SPARE_TOKENS = 256
"""A cache is whole blocks, and one of them is the server's own."""
_PREFILL_TOKENS = 2048
"""In one step on a CPU: more prompts at once cost memory and gain nothing on few cores."""


def cpu_arguments(longest: int, kv_cache_gib: float, sequences: int) -> tuple[str, ...]:
    """List what any server on a CPU is started with.

    Args:
        longest: Tokens of a prompt and its answer, at most.
        kv_cache_gib: Key-value cache, in GiB.
        sequences: Computed at once, at most.
    """
    return (
        # A prompt prefilled in parts makes vLLM rewind a seeded generator, which torch cannot do
        # on a CPU, and the engine dies of it.
        "--no-enable-chunked-prefill",
        *("--max-num-batched-tokens", str(max(_PREFILL_TOKENS, longest))),
        *("--max-num-seqs", str(sequences)),
        *("--kv-cache-memory-bytes", str(int(kv_cache_gib * 2**30))),
        # Compiling takes longer than a short run gains from it.
        "--enforce-eager",
        # The worker in the engine's own process: a process less to start, and none that spins
        # on shared memory while the other one computes.
        *("--distributed-executor-backend", "uni"),
    )


def gpu_cache_bytes(model: Path, longest: int, kv_cache_gib: float, dtype: str) -> int:
    """Measure a cache as wished, but for one longest sequence at least: a server needs that.

    Of weights whose shape nothing says it is as wished.
    """
    wished = int(kv_cache_gib * 2**30)
    try:
        shape = shape_of(json.loads((model / "config.json").read_text()))
    except (OSError, KeyError, ValueError):
        return wished
    of_token = shape.cache_bytes_per_token * (2 if dtype == "float32" else 1)
    return max(wished, of_token * (longest + _SPARE_TOKENS))


def environment(
    inherited: Mapping[str, str], *, device: str, weight_sync: str = "reload"
) -> dict[str, str]:
    """The server's environment: no secrets, no proxies, no telemetry, no downloads."""
    kept = {
        name: value
        for name, value in inherited.items()
        if (name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES))
        and not any(word in name for word in _SECRET)
    }
    ours = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if weight_sync == "ipc":
        # Handles of shared GPU memory are pickles; they come through a socket of this user alone.
        ours["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    return {**_CPU_VARIABLES, **_threads(), **kept, **ours} if device == "cpu" else kept | ours


def _threads() -> dict[str, str]:
    # The servers mostly work one after the other: each may use all cores, and the kernel, which
    # knows about the sandboxes and the coach as well, places the threads. vLLM's own binding
    # would keep one core of every server free.
    return {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        # Lets the worker share the engine's process, whose threads are set right here.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
