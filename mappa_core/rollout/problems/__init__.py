"""Where problems come from; train and held-out sets are checked to be disjoint by content."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Literal

from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.protocols import ProblemSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """One value of `problems.source`."""

    module: str
    """In this package; its `open_problems(config, workspace_mib)` makes the source."""
    works_on: Literal["answers", "files"]
    """What a team does with its problems: it answers them, or it works on their files."""


SOURCES: Mapping[str, SourceKind] = MappingProxyType(
    {
        "arithmetic": SourceKind(module="arithmetic", works_on="answers"),
        "json": SourceKind(module="json_files", works_on="answers"),
        "tabular": SourceKind(module="tabular", works_on="files"),
        "dsbench": SourceKind(module="dsbench_files", works_on="files"),
    }
)
"""Every source of problems by name."""


def problem_source(config: ProblemsConfig, workspace_mib: int | None = None) -> ProblemSource:
    """The source a configuration asks for, with `workspace_mib` for agents where they work there.

    Raises:
        ConfigError: A file cannot be read, the sets overlap, the levels hold too few problems, or
            a task's data leaves no room to work in.
    """
    # Imported when asked for: pandas and scikit-learn take a second.
    source = import_module(f"{__name__}.{SOURCES[config.source].module}")
    opened: ProblemSource = source.open_problems(config, workspace_mib)
    return opened
