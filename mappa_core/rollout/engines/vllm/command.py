"""The command line and the environment of a vLLM server, with the reason for each flag."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from mappa_core.models.device import resolve_dtype
from mappa_core.rollout.config import EngineConfig

BASE = "base"
"""The name the base (or merged) weights are served under."""

_KEPT_VARIABLES = frozenset(
    (
        *("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("USER", "VLLM_BATCH_INVARIANT"),
    )
)
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "KMP_")
_CPU_VARIABLES = {
    # glibc gives large blocks back to the kernel at once, and a batch's logits are large: most of
    # the time of a sampling step would go into touching fresh pages.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    # OpenMP threads that wait for each other by spinning burn the very core that the other one
    # needs, as soon as anything else runs: a busy machine was seven times slower for it.
    "OMP_WAIT_POLICY": "passive",
    # All that vLLM still compiles is the rank of a token, a few milliseconds of a step; it would
    # cost each server seconds at its first request, and a machine without g++ the run.
    "TORCH_COMPILE_DISABLE": "1",
}
_PREFILL_TOKENS = 2048
"""In one step on a CPU: more prompts at once cost memory and gain nothing on few cores."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def arguments(
    model: Path | str, config: EngineConfig, *, device: str, servers: int
) -> tuple[str, ...]:
    """What every server is started with; `servers` of them share the machine."""
    length = config.max_model_length
    dtype = str(resolve_dtype(config.dtype, device)).removeprefix("torch.")
    common = (
        *("--model", str(model), "--served-model-name", BASE),
        *("--dtype", dtype, "--max-model-len", str(length)),
        # The model's generation_config could bring top-k or a repetition penalty along: sampling
        # must be exactly what the request says. Log-probs are of what is sampled from, temperature
        # included, as the trainer computes them.
        *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"),
        "--enable-prefix-caching",
        *("--disable-uvicorn-access-log", "--disable-log-stats"),
    )
    if device == "cpu":
        return (*common, *_on_cpu(config))
    share = config.gpu_memory_utilization / servers
    asleep = ("--enable-sleep-mode",) if config.colocate else ()
    sync = () if config.weight_sync == "reload" else transfer_arguments(config.weight_sync)
    return (*common, "--gpu-memory-utilization", f"{share:.3f}", *asleep, *sync)


def transfer_arguments(backend: str) -> tuple[str, ...]:
    """What lets a server take weights by vLLM's own transfer."""
    return ("--weight-transfer-config", json.dumps({"backend": backend}))


def _on_cpu(config: EngineConfig) -> tuple[str, ...]:
    return (
        # A prompt prefilled in parts makes vLLM rewind a seeded generator, which torch cannot do
        # on a CPU, and the engine dies of it.
        "--no-enable-chunked-prefill",
        *("--max-num-batched-tokens", str(max(_PREFILL_TOKENS, config.max_model_length))),
        *("--max-num-seqs", "64"),
        # The default of 128 tokens is longer than most prefixes that prompts share.
        *("--block-size", "32"),
        *("--kv-cache-memory-bytes", str(int(config.kv_cache_gib * 2**30))),
        # Compiling takes longer than a short run gains from it.
        "--enforce-eager",
        # The worker in the engine's own process: a process less to start, and none that spins
        # on shared memory while the other one computes.
        *("--distributed-executor-backend", "uni"),
    )


def adapter_arguments(agents: int, lora_rank: int) -> tuple[str, ...]:
    """What lets a server hold every agent's adapter, and the next version of one beside it."""
    rank = next((rank for rank in _LORA_RANKS if rank >= lora_rank), lora_rank)
    return (
        "--enable-lora",
        *("--max-loras", str(agents), "--max-cpu-loras", str(2 * agents)),
        *("--max-lora-rank", str(rank)),
    )


def environment(
    inherited: Mapping[str, str], *, device: str, weight_sync: str = "reload"
) -> dict[str, str]:
    """The server's environment: no secrets, no proxies, no telemetry, no downloads."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
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
