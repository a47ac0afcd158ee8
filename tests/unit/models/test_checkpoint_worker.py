"""What a vLLM worker replaces its weights by; vLLM's own are in tests/contract/test_engine.py."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mappa_core.models.serving.checkpoint_worker import CheckpointWorker
from mappa_core.models.weights import ServedWeights
from mappa_core.rollout.engines.vllm.command import WORKER
from tests.tiny_model import save_adapter, save_tiny_model


class _Worker(CheckpointWorker):
    def __init__(self, model: Path) -> None:
        named = SimpleNamespace(model=str(model), dtype=torch.float32)
        self.vllm_config = SimpleNamespace(model_config=named)
        self.replaced: dict[str, torch.Tensor] | None = None

        def replace(*, weights_iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
            self.replaced = dict(weights_iterator)

        self.reload_weights = replace


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "base")


def test_it_is_the_class_that_servers_are_told() -> None:
    assert f"{CheckpointWorker.__module__}.{CheckpointWorker.__qualname__}" == WORKER


def test_weights_are_those_of_the_base_with_the_checkpoint_or_without(
    base: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    for given in (adapter, None):
        worker = _Worker(base)
        assert worker.serve_checkpoint("" if given is None else str(given)) == ""
        assert worker.replaced is not None
        wanted = dict(ServedWeights(base, given, torch.float32).tensors())
        assert worker.replaced.keys() == wanted.keys()
        assert all(torch.equal(worker.replaced[name], wanted[name]) for name in wanted)
        as_it_came = load_file(base / "model.safetensors")
        changed = any(not torch.equal(wanted[name], as_it_came[name]) for name in wanted)
        assert changed == (given is not None)


def test_a_checkpoint_that_cannot_be_read_replaces_nothing(base: Path, tmp_path: Path) -> None:
    adapter = save_adapter(base, tmp_path / "adapter")
    os.truncate(adapter / "adapter_model.safetensors", 100)
    worker = _Worker(base)
    assert "damaged" in worker.serve_checkpoint(str(adapter))
    assert "nowhere" in worker.serve_checkpoint(str(tmp_path / "nowhere"))
    assert worker.replaced is None
