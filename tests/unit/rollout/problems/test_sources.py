"""Every source of problems: one row in the table."""

import json
from pathlib import Path

import pytest

from mappa_core.core.errors import ConfigError
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.protocols import TaskSource
from mappa_core.rollout.source_table import SOURCES


@pytest.mark.parametrize("name", ["arithmetic", "tabular"])
def test_a_bundled_source_gives_what_its_row_says(name: str) -> None:
    source = problem_source(ProblemsConfig(source=name, train_size=4, held_out_size=4))
    assert isinstance(source, TaskSource) is (SOURCES[name].works_on == "files")
    assert len(source.train()) == len(source.held_out()) == 4


@pytest.mark.parametrize("name", ["json", "dsbench"])
def test_a_source_of_files_needs_them(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^problems.source={name} needs problems.*train_files"):
        problem_source(ProblemsConfig(source=name, folder=Path()))


def test_files_of_relative_names_are_looked_for_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's run begins in an empty folder of Prefect's, wherever the files lie."""
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        row = {"prompt": f"What is {name}?", "answer": "1"}
        (tmp_path / "data" / f"{name}.json").write_text(json.dumps([row]))
    train, held_out = Path("data/a.json"), tmp_path / "data" / "b.json"
    config = ProblemsConfig(
        source="json",
        train_files=(train,),
        held_out_files=(held_out,),
        train_size=1,
        held_out_size=1,
    )
    with pytest.raises(ConfigError, match=r"data/a.json cannot be read"):
        problem_source(config)
    monkeypatch.setenv("MAPPA_PROBLEMS", str(tmp_path))
    assert [each.statement for each in problem_source(config).train()] == ["What is a?"]
    dsbench = ProblemsConfig(source="dsbench", folder=Path("CSV"), prompts_file=Path("p.json"))
    within = dsbench.within(tmp_path)
    assert (within.folder, within.prompts_file) == (tmp_path / "CSV", tmp_path / "p.json")
