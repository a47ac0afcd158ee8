"""What the commands print: tables for people, JSON for scripts."""

import shutil
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mappa_cli.benches.report import BenchReport
from mappa_cli.doctor import Finding
from mappa_cli.printing.console import titled
from mappa_core.core.records.runs import EpisodeSummary, Run, RunStatus
from mappa_core.evaluate.comparison import Comparison
from mappa_core.store.store import Store
from mappa_core.train.memory_plan import GB, MemoryPlan

LOST = "lost"
"""Of a run whose process was killed, or ran out of memory."""
SHOWN_ID_CHARACTERS = 13
"""Of an episode's id in a list: enough for `mappa show` to find it."""


def comparison_table(comparison: Comparison) -> Table:
    """Before and after on the held-out problems."""
    table = titled("held-out problems, paired by problem")
    for column in ("", "right", "of", "share"):
        table.add_column(column, justify="left" if not column else "right")
    for name, rate in (("before", comparison.before), ("after", comparison.after)):
        right = round(rate * comparison.episodes)
        table.add_row(name, str(right), str(comparison.episodes), f"{rate:.1%}")
    return table


def gain(comparison: Comparison) -> str:
    """The difference, how sure it is, and what that means."""
    return (
        f"gain {100 * comparison.difference:+.1f} points, 95 % interval "
        f"{100 * comparison.low:+.1f} to {100 * comparison.high:+.1f}: {comparison.verdict}"
    )


def where_next(run_name: str) -> str:
    """What to look at after a run."""
    mappa = Path(sys.argv[0]).name if shutil.which("mappa") else sys.argv[0]
    return "\n".join(
        (
            "where to look next:",
            f"  {mappa} show {run_name}   its iterations and episodes",
            f"  {mappa} show EPISODE   one conversation with scores and rationales",
            f'  psql "$({mappa} db url)"   the rows; start with audit.action_scores',
            f"  {mappa} serve   the Prefect and MLflow pages",
        )
    )


def runs_table(runs: Sequence[Run], claimed: AbstractSet[UUID]) -> Table:
    """All runs, a line each; a narrow terminal cuts their notes, which `print_run` has whole.

    Args:
        runs: The runs.
        claimed: Those that have a process.
    """
    table = Table()
    for column in ("run", "status", "seed", "started"):
        table.add_column(column, no_wrap=True)
    table.add_column("note")
    for run in runs:
        started = f"{run.started_at:%m-%d %H:%M}"
        status = _standing(run, claimed)
        again = "resume it" if run.measures is None else "evaluate again"
        said = run.error or (again if status == LOST else "")
        # The one column that may shrink, and by being cut: a list has a line for each.
        note = Text(said, no_wrap=True, overflow="ellipsis")
        table.add_row(run.name, status, str(run.seed), started, note)
    return table


def _standing(run: Run, claimed: AbstractSet[UUID]) -> str:
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
            "status": _standing(run, claimed),
            "seed": run.seed,
            "started_at": run.started_at.isoformat(),
            "prefect_flow_run_id": run.prefect_flow_run_id,
            "mlflow_run_id": run.mlflow_run_id,
            "error": run.error,
        }
        for run in runs
    ]


def print_run(console: Console, store: Store, run: Run) -> None:
    """A run: what it is, its iterations, and episodes worth opening."""
    console.print(runs_table([run], store.runs.list_claimed_runs()))
    console.print(_run_facts(run), soft_wrap=True)
    summaries = store.episodes.list_episodes(run.id)
    console.print(iterations_table(summaries))
    console.print(_episodes_table(summaries))


def iterations_table(summaries: Sequence[EpisodeSummary]) -> Table:
    """How many episodes of each iteration came out right, and how they were scored."""
    table = titled("iterations")
    for column in ("phase", "iteration", "episodes", "right", "mean score"):
        table.add_column(column, justify="right")
    for phase, iteration in sorted({(s.phase, s.iteration) for s in summaries}):
        of_it = [s for s in summaries if (s.phase, s.iteration) == (phase, iteration)]
        scores = [s.mean_score for s in of_it if s.mean_score is not None]
        mean = f"{sum(scores) / len(scores):.2f}" if scores else "-"
        right = sum(bool(s.success) for s in of_it)
        table.add_row(phase, str(iteration), str(len(of_it)), str(right), mean)
    return table


def _run_facts(run: Run) -> str:
    links = (
        ("error", run.error),
        ("code", run.code_version),
        ("sandbox", run.sandbox_tier),
        ("Prefect flow run", run.prefect_flow_run_id),
        ("MLflow run", run.mlflow_run_id),
    )
    return "\n".join(f"{name}: {value}" for name, value in links if value)


def _episodes_table(summaries: Sequence[EpisodeSummary]) -> Table:
    scored = [s for s in summaries if s.mean_score is not None]
    ranked = sorted(scored, key=lambda s: (s.mean_score or 0.0, str(s.id)))
    chosen = ranked[:4] + ranked[-4:] if len(ranked) > 8 else ranked
    table = titled("lowest and highest scored episodes")
    for column in ("episode", "iteration", "task", "right", "mean score"):
        table.add_column(column)
    for summary in chosen:
        right = "-" if summary.success is None else ("yes" if summary.success else "no")
        score = f"{summary.mean_score:.2f}"
        shown_id = str(summary.id)[:SHOWN_ID_CHARACTERS]
        table.add_row(shown_id, str(summary.iteration), summary.task_type, right, score)
    return table


def doctor_table(findings: Sequence[Finding]) -> Table:
    """What the machine offers."""
    table = Table()
    for column in ("", "what", "found", "how to get it"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = Text("yes", style="green") if finding.works else Text("no", style="yellow")
        table.add_row(mark, finding.name, finding.found, finding.advice)
    return table


def plan_table(planned: MemoryPlan) -> Table:
    """What a run keeps where."""
    found = f"{planned.gpu_bytes / GB:.0f} GB GPU, all agents: "
    found += "fits" if planned.fits else "does not fit"
    table = titled(found)
    for column in ("phase", "what", "GPU, GB", "CPU, GB"):
        table.add_column(column, justify="left" if column in ("phase", "what") else "right")
    for item in planned.items:
        table.add_row(
            item.phase, item.what, f"{item.gpu_bytes / GB:.1f}", f"{item.host_bytes / GB:.1f}"
        )
    for phase in ("rollout", "update"):
        table.add_row(phase, "together", f"{planned.peak(phase) / GB:.1f}", "", style="bold")
    return table


def plan_json(planned: MemoryPlan) -> dict[str, object]:
    """The same for a script."""
    return {**asdict(planned), "fits": planned.fits, "host_bytes": planned.host_bytes}


def plan_note(planned: MemoryPlan) -> str:
    """What of a plan is in no row."""
    return (
        f"each cache holds {planned.cached_tokens:,} tokens; the longest sequence has "
        f"{planned.longest:,}; CPU at most {planned.host_bytes / GB:.0f} GB"
    )


def bench_table(report: BenchReport) -> Table:
    """Measured figures beside their aims."""
    table = titled(f"{report.bench} on {report.machine}")
    for column in ("figure", "value", "unit", "aim", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for figure in report.figures:
        met = "" if figure.met is None else ("yes" if figure.met else "no")
        table.add_row(figure.name, f"{figure.value:.3f}", figure.unit, figure.aim or "", met)
    if report.absent:
        table.caption = "\n".join(f"not measured: {each}" for each in report.absent)
        table.caption_justify = "left"
    return table
