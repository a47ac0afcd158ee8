"""Where problems come from; train and held-out sets are checked to be disjoint by content."""

from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems.arithmetic import ArithmeticProblems
from mappa_core.rollout.problems.json_files import JsonProblems
from mappa_core.rollout.protocols import ProblemSource


def problem_source(config: ProblemsConfig, workspace_mib: int | None = None) -> ProblemSource:
    """The source a configuration asks for.

    Args:
        config: Which problems.
        workspace_mib: What agents have room for; None where nobody is going to work there.

    Raises:
        ConfigError: A file cannot be read, the sets overlap, the levels hold too few problems, or
            a task's data leaves no room to work in.
    """
    # Imported when asked for: pandas and scikit-learn take a second.
    match config.source:
        case "arithmetic":
            return ArithmeticProblems(config)
        case "json":
            return JsonProblems(config)
        case "tabular":
            from mappa_core.rollout.problems.tabular import tabular_problems

            return tabular_problems(config)
        case "dsbench":
            from mappa_core.rollout.problems.dsbench_files import dsbench_problems

            return dsbench_problems(config, workspace_mib)
