"""`mappa bench`: how fast this machine is, and how right its estimators are."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mappa_cli.benches import NAMES, run_bench
from mappa_cli.commands.options import Json, Overrides
from mappa_cli.printing.console import make_table, open_console
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_cli.benches.report import BenchReport, Figure

SMALL = 1e-3


def bench(
    name: Annotated[
        str,
        typer.Argument(help=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}."),
    ],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure, as ratios within one run on this machine."""
    report = run_bench(name, overrides or (), Settings())
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        open_console().print(bench_table(report))


def bench_table(report: "BenchReport") -> Table:
    """Measured figures beside their aims."""
    met = {None: "", True: "yes", False: "no"}
    rows = [
        (each.name, _value(each), each.unit, each.aim or "", met[each.met])
        for each in report.figures
    ]
    numbers = ("value", "unit", "aim", "met")
    title = f"{report.bench} on {report.machine}"
    table = make_table(title, ("figure", *numbers), rows, numbers=numbers)
    if report.absent:
        table.caption = "\n".join(f"not measured: {each}" for each in report.absent)
        table.caption_justify = "left"
    return table


def _value(figure: "Figure") -> str:
    error = "" if figure.error is None else f" ± {figure.error:.3f}"
    small = 0 < abs(figure.value) < SMALL
    return f"{figure.value:.1e}" if small else f"{figure.value:.3f}{error}"
