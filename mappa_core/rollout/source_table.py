"""The table of problem sources: one module of `rollout.problems` and one row each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One value of `problems.source`."""

    module: str
    """In `rollout.problems`; its `open_problems(config, workspace_mib)` makes the source."""
    works_on: Literal["answers", "files"]
    """What a team does with its problems: it answers them, or it works on their files."""
    summary: str
    """In a few words, for the key's description."""


SOURCES: Mapping[str, SourceRow] = MappingProxyType(
    {
        "arithmetic": SourceRow(
            module="arithmetic", works_on="answers", summary="bundled word problems"
        ),
        "json": SourceRow(
            module="json_files", works_on="answers", summary="files in the style of AIME and AMC"
        ),
        "tabular": SourceRow(
            module="tabular", works_on="files", summary="bundled prediction tasks"
        ),
        "dsbench": SourceRow(
            module="dsbench_files",
            works_on="files",
            summary="DSBench's modeling tasks from disk",
        ),
    }
)
"""Every source of problems by the name that `problems.source` gives it."""
