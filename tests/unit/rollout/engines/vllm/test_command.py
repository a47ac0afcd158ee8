"""What a server is told, and what it is not."""

import json
from pathlib import Path
from typing import Literal

import pytest

from mappa_core.models.device import cpu_has_bfloat16
from mappa_core.models.serving.command import environment
from mappa_core.models.serving.fork_server import TURN
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm import command


def flag(arguments: tuple[str, ...], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_secrets_and_proxies_do_not_reach_the_server() -> None:
    told = environment(
        {
            "PATH": "/usr/bin",
            "CUDA_VISIBLE_DEVICES": "1",
            "GOOGLE_API_KEY": "secret",
            "HF_TOKEN": "secret",
            "MAPPA_DATABASE_URL": "postgresql://u:secret@h/d",
            "HTTPS_PROXY": "http://u:secret@proxy",
            "https_proxy": "http://u:secret@proxy",
            "VLLM_API_KEY": "secret",
            "NCCL_IB_HCA": "mlx5_0",
            "HF_HOME": "/models",
            "VLLM_LOGGING_LEVEL": "DEBUG",
            "CC": "gcc-13",
            "VLLM_BATCH_INVARIANT": "1",
        },
        device="cpu",
    )
    assert not [name for name, value in told.items() if "secret" in value]
    assert told["PATH"] == "/usr/bin"
    assert told["CUDA_VISIBLE_DEVICES"] == "1"
    assert told["VLLM_BATCH_INVARIANT"] == "1"
    for name in ("NCCL_IB_HCA", "HF_HOME", "VLLM_LOGGING_LEVEL", "CC"):
        assert name in told
    assert told["VLLM_NO_USAGE_STATS"] == "1"
    assert told["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("device", "sleeps", "can"),
    [("cuda", True, True), ("cpu", True, False), ("cuda", False, False)],
)
def test_servers_can_sleep_where_that_is_placed(device: str, sleeps: bool, can: bool) -> None:
    said = command.arguments("m", EngineConfig(), device=device, servers=3, sleeps=sleeps)
    assert ("--enable-sleep-mode" in said) == can


def test_weights_are_transferred_where_that_is_asked_for() -> None:
    sent = command.arguments("m", EngineConfig(weight_sync="nccl"), device="cuda", servers=1)
    assert flag(sent, "--weight-transfer-config") == '{"backend": "nccl"}'
    read = command.arguments("m", EngineConfig(), device="cuda", servers=1)
    assert "--weight-transfer-config" not in read
    pickles = [
        sync
        for sync in ("reload", "ipc", "nccl")
        if "VLLM_ALLOW_INSECURE_SERIALIZATION" in environment({}, device="cuda", weight_sync=sync)
    ]
    assert pickles == ["ipc"]


def test_threads_spin_for_microseconds_or_as_they_are_told() -> None:
    assert environment({}, device="cpu")["GOMP_SPINCOUNT"] == "2000"
    assert "GOMP_SPINCOUNT" not in environment({}, device="cuda")
    assert environment({"GOMP_SPINCOUNT": "0"}, device="cpu")["GOMP_SPINCOUNT"] == "0"


def test_a_cpu_samples_in_float32_where_it_is_told_and_reads_prompts_whole() -> None:
    config = EngineConfig(dtype="float32", max_model_length=8192, kv_cache_gib=0.5)
    arguments = command.arguments("model", config, device="cpu", servers=3)
    assert flag(arguments, "--dtype") == "float32"
    assert "--no-enable-chunked-prefill" in arguments
    assert int(flag(arguments, "--max-num-batched-tokens")) >= 8192
    assert flag(arguments, "--kv-cache-memory-bytes") == str(2**29)


def test_servers_share_a_gpu() -> None:
    config = EngineConfig(gpu_memory_utilization=0.6)
    arguments = command.arguments("model", config, device="cuda", servers=3)
    assert flag(arguments, "--dtype") == "bfloat16"
    assert float(flag(arguments, "--gpu-memory-utilization")) == 0.2
    assert "--no-enable-chunked-prefill" not in arguments


def test_a_cache_that_was_planned_is_asked_for_in_bytes() -> None:
    config = EngineConfig(gpu_memory_utilization=0.6)
    planned = command.arguments("m", config, device="cuda", servers=3, gpu_cache_bytes=7 * 10**9)
    assert flag(planned, "--kv-cache-memory-bytes") == "7000000000"
    # That much has to be free when the server starts.
    assert flag(planned, "--gpu-memory-utilization") == "0.200"
    measured = command.arguments("m", config, device="cuda", servers=1)
    assert "--kv-cache-memory-bytes" not in measured


def test_a_server_is_spread_over_gpus() -> None:
    config = EngineConfig(tensor_parallel=4)
    arguments = command.arguments("model", config, device="cuda", servers=1)
    assert flag(arguments, "--tensor-parallel-size") == "4"


def test_the_dtype_asked_for_is_taken() -> None:
    config = EngineConfig(dtype="bfloat16")
    assert flag(command.arguments("m", config, device="cpu", servers=1), "--dtype") == "bfloat16"


def test_the_adapter_rank_is_rounded_up_to_one_that_vllm_knows() -> None:
    arguments = command.adapter_arguments(agents=3, lora_rank=12)
    assert flag(arguments, "--max-lora-rank") == "16"
    assert flag(arguments, "--max-loras") == "3"


def test_a_cpu_samples_in_bfloat16_where_it_has_units_for_it() -> None:
    chosen = command.arguments("model", EngineConfig(), device="cpu", servers=3)
    assert flag(chosen, "--dtype") == ("bfloat16" if cpu_has_bfloat16() else "float32")


@pytest.mark.parametrize(
    ("device", "serving", "turns"),
    [("cpu", "merged", [0, 0, 1, 1]), ("cpu", "adapters", None), ("cuda", "merged", None)],
)
def test_servers_of_one_replica_take_turns_on_a_cpu(
    device: str, serving: Literal["merged", "adapters"], turns: list[int] | None
) -> None:
    setup = EngineSetup(
        config=EngineConfig(serving=serving),
        model="m",
        agents=("a", "b"),
        end_token_ids=(),
        work_directory=Path("work"),
        log_directory=Path("logs"),
        replicas=2,
    )
    told = [each.arguments for each in command.openings(setup, device)]
    if turns is None:
        assert all("--additional-config" not in arguments for arguments in told)
        return
    given = [json.loads(flag(arguments, "--additional-config")) for arguments in told]
    assert given == [{TURN: turn} for turn in turns]
