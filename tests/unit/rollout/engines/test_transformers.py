"""Agents on plain transformers: each has its own weights, and shares the others."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mappa_core.core.records.episodes import GenerationRequest, PolicyVersion, Sampling
from mappa_core.models.weights import ServedWeights, load_base
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.transformers import engine as module
from mappa_core.rollout.engines.transformers.engine import TransformersEngine
from tests.builders import make_policy, make_run
from tests.tiny_model import save_adapter, save_tiny_model

Weights = dict[str, torch.Tensor]


async def sampled_from(
    model: Path, policies: list[PolicyVersion], monkeypatch: pytest.MonkeyPatch
) -> list[Weights]:
    """Load the policies; return the weights that each one's request is then sampled from."""
    seen: list[Weights] = []

    def sample(model: torch.nn.Module, *_: object, **__: object) -> tuple[object, ...]:
        seen.append(dict(model.named_parameters()))
        return (), (), "stop"

    monkeypatch.setattr(module, "sample", sample)
    engine = TransformersEngine(model, EngineConfig(device="cpu", dtype="float32"), (2,))
    await engine.start()
    for policy in policies:
        await engine.load(policy)
    for policy in policies:
        sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=1)
        await engine.generate(
            GenerationRequest(policy=policy, prompt_token_ids=(1,), sampling=sampling, seed=1)
        )
    await engine.close()
    return seen


def test_what_an_adapter_leaves_alone_is_in_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_tiny_model(tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "adapter")
    learned = replace(make_policy(make_run(), "solver", 1), adapter_uri=str(adapter))
    untrained = make_policy(make_run(), "verifier", 0)
    merged, plain = asyncio.run(sampled_from(base, [learned, untrained], monkeypatch))
    wanted = dict(ServedWeights(base, adapter, torch.float32).tensors())
    for name, weight in load_base(base, torch.float32, "cpu").named_parameters():
        torch.testing.assert_close(plain[name].data, weight.data, rtol=0, atol=0)
        torch.testing.assert_close(merged[name].data, wanted[name], rtol=0, atol=0)
        unchanged = bool((wanted[name] == weight).all())
        assert (merged[name].data_ptr() == plain[name].data_ptr()) is unchanged, name
    assert merged["model.embed_tokens.weight"] is plain["model.embed_tokens.weight"]
