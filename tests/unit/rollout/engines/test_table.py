"""One table names the engines; a way of sending weights that does not exist is refused."""

from importlib import import_module
from typing import get_args

import pytest

from mappa_core.core.errors import ConfigError
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines import ENGINES, check_engine


def test_the_configuration_names_what_the_table_has() -> None:
    named = get_args(EngineConfig.model_fields["backend"].annotation)
    assert set(named) == set(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_what_its_row_says(name: str) -> None:
    kind = ENGINES[name]
    assert callable(import_module(f"mappa_core.rollout.engines.{kind.module}").open_engine)
    if kind.prestart is not None:
        assert callable(import_module(f"mappa_core.rollout.engines.{kind.prestart}").prestarted)


@pytest.mark.parametrize(
    ("engine", "whole", "complaint"),
    [
        ({}, False, "goes through a GPU's memory: on a CPU leave it at reload"),
        ({"serving": "merged"}, False, "goes through a GPU's memory"),
        ({"serving": "adapters"}, False, "sends whole weights to vLLM, and none are served"),
        ({"backend": "transformers"}, True, "engine.backend=vllm and engine.serving=merged"),
    ],
)
def test_weights_are_sent_where_whole_ones_are_served(
    engine: dict[str, str], whole: bool, complaint: str
) -> None:
    config = EngineConfig(device="cpu", weight_sync="ipc", **engine)
    with pytest.raises(ConfigError, match=f"^engine.weight_sync=ipc .*{complaint}"):
        check_engine(config, whole_weights=whole)
    check_engine(config.model_copy(update={"weight_sync": "reload"}), whole_weights=whole)
