"""Prints stored runs: a line each, or one with its iterations and episodes worth opening."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from uuid import UUID

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mappa_cli.printing.console import make_table
from mappa_core.core.records.episodes import Phase
from mappa_core.core.records.provenance import resumed_otherwise
from mappa_core.core.records.runs import EpisodeSummary, IterationFigures, Run, RunStatus
from mappa_core.store.store import Store

LOST = "lost"
"""Of a run whose process was killed, or ran out of memory."""
SHOWN_ID_CHARACTERS = 13
"""Of an episode's id in a list: enough for `mappa show` to find it."""
SHOWN_OF_EACH_END = 4
"""Episodes with the lowest scores, and as many with the highest."""


def runs_table(runs: Sequence[Run], claimed: AbstractSet[UUID]) -> Table:
    """All runs, a line each; those `claimed` have a process.

    A narrow terminal cuts their notes, which `print_run` has whole.
    """
    table = make_table("", ("run", "status", "seed", "started", "note"))
    for column in table.columns[:-1]:
        column.no_wrap = True
    for run in runs:
        status = _status(run, claimed)
        again = "resume it" if run.measures is None else "evaluate again"
        # The one column that may shrink, and by being cut: a list has a line for each.
        said = run.error or (again if status == LOST else "")
        note = Text(said, no_wrap=True, overflow="ellipsis")
        table.add_row(run.name, status, str(run.seed), f"{run.started_at:%m-%d %H:%M}", note)
    return table


def _status(run: Run, claimed: AbstractSet[UUID]) -> str:
    """The run's status; one whose process could not write it down any more is lost."""
    lost = run.status is RunStatus.RUNNING and run.id not in claimed
    return LOST if lost else run.status.value


def runs_json(runs: Sequence[Run], claimed: AbstractSet[UUID]) -> list[dict[str, str | int | None]]:
    """All runs, for a script; arguments as of `runs_table`."""
    return [
        {
            "id": str(run.id),
            "name": run.name,
            "team": run.team,
            "status": _status(run, claimed),
            "seed": run.seed,
            "started_at": run.started_at.isoformat(),
            "prefect_flow_run_id": run.prefect_flow_run_id,
            "mlflow_run_id": run.mlflow_run_id,
            "error": run.error,
        }
        for run in runs
    ]


def print_run(console: Console, store: Store, run: Run) -> None:
    """Print what a run is, its iterations, and episodes worth opening."""
    console.print(runs_table([run], store.runs.list_claimed_runs()))
    facts = (
        ("error", run.error),
        ("code", run.code_version),
        ("sandbox", run.sandbox_tier),
        ("Prefect flow run", run.prefect_flow_run_id),
        ("MLflow run", run.mlflow_run_id),
    )
    said = [f"{name}: {value}" for name, value in facts if value]
    console.print("\n".join([*said, *resumed_otherwise(run.provenance)]), soft_wrap=True)
    console.print(iterations_table(iteration_lines(store.figures.list_iteration_figures(run.id))))
    console.print(_episodes_table(store.episodes.list_extreme_episodes(run.id, SHOWN_OF_EACH_END)))


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationLine:
    """One iteration's episodes in a line."""

    phase: Phase
    iteration: int
    """Held out: updates so far."""
    episodes: int
    right: int
    mean_score: float | None
    """Over actions, in [0, 10]; None where nothing was scored."""


def iteration_lines(figures: Sequence[IterationFigures]) -> tuple[IterationLine, ...]:
    """The line of each iteration, in their order."""
    return tuple(
        IterationLine(
            phase=each.phase,
            iteration=each.iteration,
            episodes=each.episodes,
            right=each.successes,
            mean_score=each.mean_score,
        )
        for each in figures
    )


def iterations_table(lines: Sequence[IterationLine]) -> Table:
    """How many episodes of each iteration came out right, and how they were scored."""
    columns = ("phase", "iteration", "episodes", "right", "mean score")
    rows = [
        (
            *(each.phase, str(each.iteration), str(each.episodes), str(each.right)),
            "-" if each.mean_score is None else f"{each.mean_score:.2f}",
        )
        for each in lines
    ]
    return make_table("iterations", columns, rows, numbers=columns)


def _episodes_table(summaries: Sequence[EpisodeSummary]) -> Table:
    rows = [
        (
            str(summary.id)[:SHOWN_ID_CHARACTERS],
            str(summary.iteration),
            summary.task_type,
            "-" if summary.success is None else ("yes" if summary.success else "no"),
            f"{summary.mean_score:.2f}",
        )
        for summary in summaries
    ]
    columns = ("episode", "iteration", "task", "right", "mean score")
    return make_table("lowest and highest scored episodes", columns, rows)
