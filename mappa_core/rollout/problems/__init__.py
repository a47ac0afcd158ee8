"""Where problems come from; train and held-out sets are checked to be disjoint by content."""

from importlib import import_module

from mappa_core.core.settings import Settings
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.protocols import ProblemSource
from mappa_core.rollout.source_table import SOURCES


def problem_source(config: ProblemsConfig, workspace_mib: int | None = None) -> ProblemSource:
    """The source a configuration asks for, with `workspace_mib` for agents where they work there.

    Files with relative names are looked for in `MAPPA_PROBLEMS`.

    Raises:
        ConfigError: A file cannot be read, the sets overlap, the levels hold too few problems, or
            a task's data leaves no room to work in.
    """
    # Imported when asked for: pandas and scikit-learn take a second.
    source = import_module(f"{__name__}.{SOURCES[config.source].module}")
    opened: ProblemSource = source.open_problems(config.within(Settings().problems), workspace_mib)
    return opened
