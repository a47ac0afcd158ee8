"""What is missing for Weights & Biases is said before anything is written."""

import sys

import pytest
from pydantic import SecretStr

from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.tracking.config import TrackingConfig
from mappa_core.tracking.opening import check_tracking

KEY = "0123456789abcdef" * 3
ALSO = TrackingConfig(also=("wandb",))
ONLINE = Settings().model_copy(update={"wandb_api_key": None, "wandb_mode": "online"})


def test_the_package_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"needs the package wandb: pip install 'mappa"):
        check_tracking(ALSO, ONLINE)
    check_tracking(TrackingConfig(), ONLINE)


def test_a_key_or_offline_mode_is_needed_and_the_key_stays_hidden() -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    with pytest.raises(ConfigError, match="needs WANDB_API_KEY in the environment, or WANDB_MODE"):
        check_tracking(ALSO, ONLINE)
    check_tracking(ALSO, ONLINE.model_copy(update={"wandb_mode": "offline"}))
    with_key = ONLINE.model_copy(update={"wandb_api_key": SecretStr(KEY)})
    check_tracking(ALSO, with_key)
    assert KEY not in repr(with_key)
