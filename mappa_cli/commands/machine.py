"""What a machine offers, and how fast it is: `mappa doctor | bench`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import Json, Overrides
from mappa_cli.printing.console import open_console
from mappa_core.app.config_files import load_config
from mappa_core.core.settings import Settings


def doctor(
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A preset: what it keeps where on one GPU.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what this machine offers and how to get the rest, or what a preset would need."""
    from mappa_cli.doctor import examine, plan_memory
    from mappa_cli.printing.tables import doctor_table, plan_json, plan_note, plan_table

    if plan is not None:
        planned = plan_memory(load_config(plan, ()), Settings())
        if as_json:
            typer.echo(json.dumps(plan_json(planned)))
        else:
            console = open_console()
            console.print(plan_table(planned))
            console.print(plan_note(planned))
        raise typer.Exit(0 if planned.fits else 1)
    findings = examine(Settings())
    if as_json:
        typer.echo(json.dumps([finding.as_json() for finding in findings]))
    else:
        open_console().print(doctor_table(findings))


def bench(
    name: Annotated[
        str,
        typer.Argument(help="rollout, orchestration, learner, store, coach, sandbox or audit."),
    ],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure, as ratios within one run on this machine."""
    from mappa_cli.benches import run_bench
    from mappa_cli.printing.tables import bench_table

    report = run_bench(name, overrides or (), Settings())
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        open_console().print(bench_table(report))
