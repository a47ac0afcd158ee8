"""One table names the engines; a way of sending weights that does not exist is refused."""

from importlib import import_module
from typing import get_args

import pytest
from pydantic import ValidationError

from mappa_core.core.errors import ConfigError
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines import ENGINES, check_engine
from mappa_core.rollout.engines.base import serves_whole_models


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
    config = EngineConfig.model_validate({"device": "cpu", "weight_sync": "ipc", **engine})
    with pytest.raises(ConfigError, match=f"^engine.weight_sync=ipc .*{complaint}"):
        check_engine(config, whole_weights=whole)
    check_engine(config.model_copy(update={"weight_sync": "reload"}), whole_weights=whole)


URLS = ("http://10.0.0.5:8000", "https://pod.example:8001")


@pytest.mark.parametrize(
    ("beside", "whole", "named"),
    [
        ({"backend": "transformers"}, False, "engine.backend"),
        (
            {"serving": "merged", "colocate": True},
            False,
            "engine.serving=merged and engine.colocate",
        ),
        ({"tensor_parallel": 2}, False, "engine.tensor_parallel"),
        ({"replicas": 2, "devices": (0,)}, False, "engine.devices and engine.replicas"),
        ({}, True, "learner.weights=full"),
    ],
)
def test_servers_that_run_already_are_given_adapters_and_nothing_else(
    beside: dict[str, object], whole: bool, named: str
) -> None:
    config = EngineConfig.model_validate({"device": "cpu", "urls": URLS, **beside})
    with pytest.raises(ConfigError, match=f"are given adapters: leave {named} as by default"):
        check_engine(config, whole_weights=whole)
    assert serves_whole_models(config, "cpu", whole_weights=whole) == (whole or "serving" in beside)


def test_addresses_are_of_servers_and_each_is_named_once() -> None:
    check_engine(EngineConfig(device="cpu", urls=URLS), whole_weights=False)
    with pytest.raises(ConfigError, match=r"engine\.urls names a server twice: http://10"):
        check_engine(EngineConfig(device="cpu", urls=URLS[:1] * 2), whole_weights=False)
    for wrong in ("10.0.0.5:8000", "http://10.0.0.5:8000/v1", "http://key@pod", "ftp://pod"):
        with pytest.raises(ValidationError, match=r"urls\.0"):
            EngineConfig(urls=(wrong,))
