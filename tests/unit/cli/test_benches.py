"""Benches are found by name, and refuse what they do not know."""

from importlib import import_module
from pathlib import Path

import pytest

from mappa_cli.benches import NAMES, run_bench
from mappa_cli.benches.report import aimed
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_bench(name: str) -> None:
    module = name.replace("-", "_")
    assert callable(getattr(import_module(f"mappa_cli.benches.{module}"), f"bench_{module}"))


def test_another_name_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no bench stroe: choose one of rollout, .*store"):
        run_bench("stroe", (), Settings(MAPPA_HOME=tmp_path))  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("name", ["coach", "sandbox"])
def test_options_are_refused_where_there_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"bench {name} has no option runs: it takes none"):
        run_bench(name, ("runs=3",), Settings(MAPPA_HOME=tmp_path))  # pyright: ignore[reportCallIssue]


def test_an_aim_is_met_on_its_right_side() -> None:
    assert aimed("rate", 5000, "1/s", at_least=5000).met
    assert not aimed("rate", 4999, "1/s", at_least=5000).met
    assert aimed("time", 0.3, "s", at_most=0.3).met
    assert not aimed("time", 0.31, "s", at_most=0.3).met
    assert aimed("time", 0.3, "s", at_most=0.3).aim == "<= 0.3"
