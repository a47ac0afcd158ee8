"""`mappa config`: what a run was told to do, and in what two of them differ."""

import json
from dataclasses import replace
from pathlib import Path

from mappa_core.app.config_files import load_config
from mappa_core.store.store import Store
from tests.builders import make_run
from tests.integration.platform.conftest import Mappa


def stored(store: Store, name: str, *overrides: str) -> None:
    config = load_config(None, overrides).model_dump(mode="json")
    store.runs.add_run(replace(make_run(name), config=config))


def test_a_run_shows_its_configuration_as_a_file_that_starts_it_again(
    mappa: Mappa, store: Store, tmp_path: Path
) -> None:
    stored(store, "one", "rollout.iterations=3")
    code, shown, _ = mappa("config", "show", "one")
    assert code == 0
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    assert load_config(again) == load_config(None, ["rollout.iterations=3"])


def test_two_runs_or_a_run_and_a_file_differ_by_key(
    mappa: Mappa, store: Store, tmp_path: Path
) -> None:
    stored(store, "one", "rollout.iterations=3")
    stored(store, "two", "seed=5")
    code, said, _ = mappa("config", "diff", "one", "two", "--json")
    assert code == 0
    assert json.loads(said) == {"rollout.iterations": [3, 10], "seed": [1, 5]}
    file = tmp_path / "file.yaml"
    file.write_text("seed: 5\n")
    assert mappa("config", "diff", "two", str(file))[1] == "no difference\n"
    table = mappa("config", "diff", "one", str(file))[1]
    assert "rollout.iterations" in table
    assert "problems" not in table


def test_a_run_that_is_not_there_is_one_line(mappa: Mappa) -> None:
    code, _, error = mappa("config", "show", "nobody")
    assert code == 2
    assert error.startswith("mappa: ")
    assert error.count("\n") == 1
