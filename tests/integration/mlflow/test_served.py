"""What the registry hands out is served by plain `vllm serve`, with the trained weights."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import torch
from peft import PeftModel

from mappa_core.adapters.huggingface.weights import load_base
from mappa_core.adapters.mlflow.registry import MlflowRegistry
from mappa_core.adapters.mlflow.tracker import MlflowTracker
from mappa_core.adapters.vllm.command import environment
from mappa_core.domain.records import PolicyVersion, Run
from mappa_core.steps.promoting import CHAMPION
from tests.adapter_files import checkpoint_in
from tests.tiny_model import save_adapter

NAME = "mappa-mathchat-solver"
PROMPT = [1, 4093, 198, 1780, 314, 216, 39, 1232, 216, 37, 47, 2, 198, 1, 520, 9531, 198]
START_SECONDS = 300


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("vllm") is None, reason="vLLM is not installed")
def test_the_champion_answers_in_vllm_serve_as_in_peft(
    registry: MlflowRegistry,
    tracker: MlflowTracker,
    tracking_uri: str,
    run: Run,
    policy: PolicyVersion,
    real_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow.artifacts

    checkpoint = checkpoint_in(save_adapter(real_model, tmp_path / "adapter", size=0.2), policy)
    version = registry.register(
        NAME, policy, checkpoint, tracker_run_id=tracker.start(run), tags={}, alias="candidate"
    )
    registry.point(NAME, CHAMPION, version, {})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)  # as a person would say it
    folder = mlflow.artifacts.download_artifacts(
        f"models:/{NAME}@{CHAMPION}", dst_path=str(tmp_path / "champion")
    )

    expected = greedy(real_model, folder)
    assert expected != greedy(real_model, None)
    assert served(real_model, folder, tmp_path / "server.log") == expected


def greedy(base: Path, adapter: str | None) -> list[int]:
    model = load_base(base, torch.float32, "cpu")
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(8):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def served(base: Path, adapter: str, log: Path) -> list[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [
        *("vllm", "serve", str(base), "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", "256", "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(2**28), "--generation-config", "vllm"),
        *("--enable-lora", "--lora-modules", f"solver={adapter}"),
    ]
    with log.open("wb") as written:
        server = subprocess.Popen(
            command,
            env=environment(os.environ, device="cpu"),
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as api:
            wait_until_healthy(api, server, log)
            asked = {
                "model": "solver",
                "prompt": PROMPT,
                "temperature": 0,
                "max_tokens": 8,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            answer = api.post("/v1/completions", json=asked).raise_for_status().json()
            return answer["choices"][0]["token_ids"]
    finally:
        server.terminate()
        server.wait(60)


def wait_until_healthy(api: httpx.Client, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert server.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            if api.get("/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
