"""Prints comparisons and evaluations: before against after, and what each agent does."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from mappa_cli.printing.console import make_table
from mappa_core.core.text import counted
from mappa_core.evaluate.comparison import Comparison, Evaluation
from mappa_core.evaluate.report import Report


def comparison_table(comparison: Comparison) -> Table:
    """Before and after on the held-out problems."""
    episodes = comparison.episodes
    rows = [
        (name, str(round(rate * episodes)), str(episodes), f"{rate:.1%}")
        for name, rate in (("before", comparison.before), ("after", comparison.after))
    ]
    numbers = ("right", "of", "share")
    return make_table("held-out problems, paired by problem", ("", *numbers), rows, numbers=numbers)


def gain(comparison: Comparison) -> str:
    """The difference, how sure it is, and what that means."""
    return (
        f"gain {100 * comparison.difference:+.1f} points, 95 % interval "
        f"{100 * comparison.low:+.1f} to {100 * comparison.high:+.1f}: {comparison.verdict}"
    )


def print_evaluation(console: Console, found: Evaluation) -> None:
    """Print before and after, each figure with its failures, and what the difference means."""
    console.print(comparison_table(found.success))
    for name, told in (("before", found.before), ("after", found.after)):
        console.print(_table(f"{name} ({counted(told.step, 'update')})", told.table()))
        console.print(_table(f"{name}: what each agent does", told.agents_table()))
    if found.strata:
        console.print(_strata_table(found.strata))
    console.print(f"success: {gain(found.success)}")
    if found.skill is not None:
        console.print(f"skill: {gain(found.skill)}")
    console.print(f"episodes: mappa show {found.run}")


def evaluation_json(found: Evaluation) -> dict[str, object]:
    """The same for a script."""
    compared = {"success": found.success} | ({"skill": found.skill} if found.skill else {})
    return {
        "run": found.run,
        "verdict": {name: each.verdict for name, each in compared.items()},
        **found.metrics(),
        "by_task_type": {
            kind: {**each.metrics(prefix="success"), "verdict": each.verdict}
            for kind, each in found.strata.items()
        },
        "before": _as_json(found.before),
        "after": _as_json(found.after),
    }


def _strata_table(strata: Mapping[str, Comparison]) -> Table:
    """Before and after of each task type, with what can be said of it alone."""
    rows = [
        (
            kind,
            str(each.problems),
            f"{each.before:.1%}",
            f"{each.after:.1%}",
            f"{100 * each.difference:+.1f}",
            f"{100 * each.low:+.1f} to {100 * each.high:+.1f}",
            each.verdict,
        )
        for kind, each in strata.items()
    ]
    numbers = ("problems", "before", "after", "gain, points", "95 % interval")
    return make_table("by task type", ("task type", *numbers, ""), rows, numbers=numbers)


def _as_json(told: Report) -> dict[str, object]:
    return {"figures": told.table(), "agents": told.agents_table()}


def _table(title: str, rows: Sequence[Mapping[str, str | float]]) -> Table:
    columns = [name.replace("_", " ") for name in rows[0]] if rows else []
    cells = ([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows)
    return make_table(title, columns, cells, numbers=columns[1:])
