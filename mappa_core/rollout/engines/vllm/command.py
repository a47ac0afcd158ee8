"""The command lines of an engine's vLLM servers, with the reason for each flag."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mappa_core.models.device import resolve_dtype
from mappa_core.models.serving.command import cpu_arguments
from mappa_core.models.serving.fork_server import TURN
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup, serves_whole_models

BASE = "base"
"""The name the base (or merged) weights are served under."""

SEQUENCES = 64
"""At once on a CPU server, at most."""
STREAM_TOKENS = 32
"""In one part of an answer: often enough to see that it comes, and not a message for each."""
WORKER = "mappa_core.models.serving.checkpoint_worker.CheckpointWorker"
"""Its name alone: a run needs nothing that it imports."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


class Opening(NamedTuple):
    """What one server is opened with."""

    number: int
    """From 0: all kinds of the first replica, then those of the second."""
    arguments: tuple[str, ...]
    log: Path


def openings(setup: EngineSetup, device: str) -> list[Opening]:
    """List what the servers of an engine on `device` are opened with."""
    names, flags = kinds(setup, device), server_flags(setup, device)
    found: list[Opening] = []
    for number in range(len(setup.devices) or len(names) * setup.replicas):
        replica, kind = divmod(number, len(names))
        name = f"{names[kind]}-{replica}" if setup.replicas > 1 else names[kind]
        own = turn_arguments(replica) if shares_cores(names, device) else ()
        log = setup.log_directory / f"vllm-{name}.log"
        found.append(Opening(number, (*flags, *own), log))
    return found


def kinds(setup: EngineSetup, device: str) -> tuple[str, ...]:
    """Name the servers of one replica: one for each agent, or one for all agents' adapters."""
    merged = serves_whole_models(setup.config, device, whole_weights=setup.whole_weights)
    return setup.agents if merged else ("adapters",)


def shares_cores(names: Sequence[str], device: str) -> bool:
    """Tell whether the servers of one replica compute on the same few cores."""
    return device == "cpu" and len(names) > 1


def server_flags(setup: EngineSetup, device: str) -> tuple[str, ...]:
    """List what each server of an engine on `device` is started with."""
    merged = serves_whole_models(setup.config, device, whole_weights=setup.whole_weights)
    used = [gpu for gpus in setup.devices for gpu in gpus]
    flags = arguments(
        setup.model,
        setup.config,
        device=device,
        servers=max(map(used.count, used), default=len(setup.agents) if merged else 1),
        gpu_cache_bytes=setup.gpu_cache_bytes,
        sleeps=setup.sleeps,
    )
    if merged:
        return flags
    return flags + adapter_arguments(len(setup.agents), setup.lora_rank)


def arguments(
    model: Path | str,
    config: EngineConfig,
    *,
    device: str,
    servers: int,
    gpu_cache_bytes: int | None = None,
    sleeps: bool = False,
) -> tuple[str, ...]:
    """List what every server is started with.

    Args:
        model: Directory of the base weights.
        config: The engine's.
        device: `cpu` or `cuda`.
        servers: How many share a GPU.
        gpu_cache_bytes: Key-value cache of each on a GPU; None: it measures what its share leaves.
        sleeps: Whether it can be told to leave its GPU's memory.
    """
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
        # It reads checkpoints itself.
        *("--worker-extension-cls", WORKER),
        # Prompts come and answers go as tokens.
        "--skip-tokenizer-init",
        *("--stream-interval", str(STREAM_TOKENS)),
        *("--disable-uvicorn-access-log", "--disable-log-stats"),
    )
    if device == "cpu":
        return (*common, *cpu_arguments(config.max_model_length, config.kv_cache_gib, SEQUENCES))
    # The share must be free when a server starts; an explicit cache is not measured any more.
    share = ("--gpu-memory-utilization", f"{config.gpu_memory_utilization / servers:.3f}")
    if gpu_cache_bytes is not None:
        share += ("--kv-cache-memory-bytes", str(gpu_cache_bytes))
    asleep = ("--enable-sleep-mode",) if sleeps else ()
    spread = ("--tensor-parallel-size", str(config.tensor_parallel))
    sync = () if config.weight_sync == "reload" else transfer_arguments(config.weight_sync)
    return (*common, *share, *spread, *asleep, *sync)


def turn_arguments(turn: int) -> tuple[str, ...]:
    """What has servers of one machine compute in turns with all others of the number `turn`."""
    return ("--additional-config", json.dumps({TURN: turn}))


def transfer_arguments(backend: str) -> tuple[str, ...]:
    """What lets a server take weights by vLLM's own transfer."""
    return ("--weight-transfer-config", json.dumps({"backend": backend}))


def adapter_arguments(agents: int, lora_rank: int) -> tuple[str, ...]:
    """What lets a server hold every agent's adapter, and the next version of one beside it."""
    rank = next((rank for rank in _LORA_RANKS if rank >= lora_rank), lora_rank)
    return (
        "--enable-lora",
        *("--max-loras", str(agents), "--max-cpu-loras", str(2 * agents)),
        *("--max-lora-rank", str(rank)),
    )
