"""What `mappa evaluate` prints."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from flows.evaluate import Evaluation
from mappa_cli.printing.console import titled
from mappa_cli.printing.tables import comparison_table, gain
from mappa_core.core.text import counted
from mappa_core.evaluate.report import Report


def print_evaluation(console: Console, found: Evaluation) -> None:
    """Before and after, each figure with its failures, and what the difference means."""
    console.print(comparison_table(found.success))
    for name, told in (("before", found.before), ("after", found.after)):
        console.print(_table(f"{name} ({counted(told.step, 'update')})", told.table()))
        console.print(_table(f"{name}: what each agent does", told.agents_table()))
    console.print(f"success: {gain(found.success)}")
    if found.skill is not None:
        console.print(f"skill: {gain(found.skill)}")
    console.print(f"episodes: mappa show {found.run}")


def evaluation_json(found: Evaluation) -> dict[str, object]:
    """The same for a script."""
    verdicts = {"success": found.success.verdict}
    if found.skill is not None:
        verdicts["skill"] = found.skill.verdict
    return {
        "run": found.run,
        "verdict": verdicts,
        **found.metrics(),
        "before": _as_json(found.before),
        "after": _as_json(found.after),
    }


def _as_json(told: Report) -> dict[str, object]:
    return {"figures": told.table(), "agents": told.agents_table()}


def _table(title: str, rows: Sequence[Mapping[str, str | float]]) -> Table:
    table = titled(title)
    for number, column in enumerate(rows[0] if rows else ()):
        table.add_column(column.replace("_", " "), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    return table
