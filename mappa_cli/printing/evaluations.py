"""Prints comparisons and evaluations: before against after, and what each agent does."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from mappa_cli.printing.console import make_table
from mappa_core.core.text import counted
from mappa_core.evaluate.comparison import Comparison
from mappa_core.evaluate.evaluation import Evaluation, Stratum
from mappa_core.evaluate.evaluation_tables import kind_tables
from mappa_core.evaluate.power import ENOUGH, PowerPlan
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
    for told in kind_tables(found):
        console.print(make_table(told.title, told.columns, told.rows, numbers=told.numbers))
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
        **{
            f"by_{by}": {kind: _stratum_json(each) for kind, each in strata.items()}
            for by, strata in found.strata.items()
        },
        "fair": [
            {
                "task_type": each.task_type,
                **each.comparison.metrics(each.name),
                "verdict": each.verdict,
                "charged": each.charged,
            }
            for each in found.fair
        ],
        "before": _as_json(found.before),
        "after": _as_json(found.after),
    }


def power_table(plans: Mapping[str, PowerPlan]) -> Table:
    """How likely each benchmark was to show a gain, and what it would take to find it."""
    (gain, *_) = (each.gain for each in plans.values())
    rows = [
        (
            name,
            f"{each.problems} x {each.samples}",
            f"{each.chance:.0%}",
            _needed(each.samples_needed, f"{each.problems} x {{}}"),
            _needed(each.problems_needed, f"{{}} x {each.samples}"),
        )
        for name, each in plans.items()
    ]
    aim = f"for {ENOUGH:.0%}"
    numbers = ("problems x episodes", "chance", f"more episodes, {aim}", f"more problems, {aim}")
    title = f"chance to find a gain of {100 * gain:.1f} points"
    return make_table(title, ("benchmark", *numbers), rows, numbers=numbers)


def _needed(number: int | None, form: str) -> str:
    return "not in reach" if number is None else form.format(number)


def _stratum_json(each: Stratum) -> dict[str, object]:
    return {
        **each.success.metrics(prefix="success"),
        "verdict": each.success.verdict,
        "before": each.before.table(),
        "after": each.after.table(),
    }


def _as_json(told: Report) -> dict[str, object]:
    return {"figures": told.table(), "agents": told.agents_table()}


def _table(title: str, rows: Sequence[Mapping[str, str | float]]) -> Table:
    columns = [name.replace("_", " ") for name in rows[0]] if rows else []
    cells = ([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows)
    return make_table(title, columns, cells, numbers=columns[1:])
