"""What a flow that Prefect starts may be told to start in spite of."""

import asyncio
from pathlib import Path

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import DiskFull, MappaError
from tests.unit.cli.test_main import SIZES


@pytest.mark.parametrize(
    ("refusal", "changes"),
    [
        ("memory", {"engine": {"max_model_length": 2**20, "kv_cache_gib": 50, "device": "cpu"}}),
        ("disk", {"rollout": {"iterations": 10**7}, "engine": {"device": "cpu"}}),
    ],
)
def test_a_flow_is_refused_what_does_not_fit_until_it_is_overruled_by_name(
    refusal: str,
    changes: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    # A model that has a shape, and no weights: what is looked for next.
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(SIZES)
    told = {"model": str(tmp_path / "model"), "learner": {"device": "cpu"}, **changes}
    config = TrainConfig.model_validate(told)
    with pytest.raises(MappaError, match=f"--despite {refusal}") as refused:
        asyncio.run(train(config))
    assert isinstance(refused.value, DiskFull) is (refusal == "disk")
    assert not (tmp_path / "home").exists()
    # As a deployment's parameters come, from JSON.
    with pytest.raises(MappaError, match=str(tmp_path / "model")) as next_one:
        asyncio.run(train(config, despite=[refusal]))  # type: ignore[arg-type]
    assert "--despite" not in str(next_one.value)
