"""Every source of problems: one row in the table."""

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
