"""The command line; `mappa --help` lists the commands, and `flows.commands` holds most of them.

Exit codes: 0 done, 2 bad input, 1 failed, 130 stopped by Ctrl-C, 143 by SIGTERM. Every error is
one line.
Prefect, MLflow and torch take seconds to import, so each command imports what it needs.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import exchange
from flows.commands.audit import audit_command
from flows.commands.coaches import register as register_coach_commands
from flows.commands.config import config as config_commands
from flows.commands.label import label
from flows.commands.promote import promote_command
from flows.commands.report import report_command
from flows.commands.reproduce import reproduce
from flows.commands.train import train_command
from flows.ending import INTERRUPTED, run_flow, sigterm_unwinds
from flows.printing.console import open_console
from mappa_core.adapters.config_files import load_config, with_overrides
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import MappaError, UserError
from mappa_core.domain.records import Run
from mappa_core.settings import Settings

app = typer.Typer(
    help="Train teams of language-model agents from per-action coach scores.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
db = typer.Typer(help="The experiment store's database.", no_args_is_help=True)
app.add_typer(db, name="db")
exchange.register(app, db)
register_coach_commands(app)
app.command("train")(train_command)
app.command("audit")(audit_command)
app.command("reproduce")(reproduce)
app.command()(label)
app.command("promote")(promote_command)
app.command("report")(report_command)
app.add_typer(config_commands, name="config")

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, e.g. seed=3 rollout.iterations=4.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        with sigterm_unwinds():
            _run()
    except MappaError as error:
        open_console(stderr=True).print(f"mappa: {error}", soft_wrap=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except OSError as error:
        # A file that cannot be written where the user named it, or a full disk behind stdout; who
        # stopped reading (`mappa runs | head`) knows.
        if not isinstance(error, BrokenPipeError):
            open_console(stderr=True).print(f"mappa: {error}", soft_wrap=True)
        _drop_stdout()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run() -> None:
    try:
        app()
    finally:
        sys.stdout.flush()


def _drop_stdout() -> None:
    """Lose what stdout would not take, which Python tries again as it exits."""
    with suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="A run: its name, id or a prefix of either.")],
    overrides: Overrides = None,
    step: Annotated[
        int | None, typer.Option("--step", help="Updates the policies had had; default the last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a run's trained team with its base on held-out problems."""
    settings = Settings()
    stored = _stored_run(run, settings)
    config = with_overrides(TrainConfig.model_validate(stored.config), overrides or ())
    from flows.printing.progress import RichWatcher
    from flows.recorder import check_recorder_load
    from flows.servers import prefect_server
    from mappa_core.bootstrap import check_inputs, warming, watching
    from mappa_core.steps import check_same_weights

    check_same_weights(stored, config, "an evaluation")
    check_recorder_load(config, check_inputs(config, settings))
    with (
        warming(config, settings),
        prefect_server(settings),
        RichWatcher(open_console(stderr=True)) as watcher,
        watching(watcher),
    ):
        from flows.evaluate import evaluate as evaluate_flow

        found = run_flow(evaluate_flow(stored.name, config, step))
    from flows.printing.evaluations import evaluation_json, print_evaluation

    if as_json:
        typer.echo(json.dumps(evaluation_json(found)))
    else:
        print_evaluation(open_console(), found)


@app.command()
def runs(as_json: Json = False) -> None:
    """List the runs in the store, newest first."""
    from flows.printing.tables import runs_json, runs_table
    from mappa_core.bootstrap import opened_store

    with opened_store(Settings()) as store:
        found, claimed = store.runs(), store.claimed_runs()
    if as_json:
        typer.echo(json.dumps(runs_json(found, claimed)))
    else:
        open_console().print(runs_table(found, claimed))


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="A run, or an episode: name, id or prefix.")],
    coach: Annotated[
        bool, typer.Option("--coach", help="Each score's exact prompt and reply, cost, latency.")
    ] = False,
) -> None:
    """Print a run's iterations and episodes, or an episode's whole conversation with scores."""
    from flows.printing.episode import print_episode
    from flows.printing.tables import print_run
    from mappa_core.bootstrap import opened_store
    from mappa_core.domain.errors import NotFound

    console = open_console()
    with opened_store(Settings()) as store:
        try:
            run = store.run(what)
        except NotFound:
            print_episode(console, store, store.episode(what), in_full=coach)
        else:
            print_run(console, store, run)


@app.command()
def serve(
    prefect_port: Annotated[int, typer.Option(min=1, max=65535)] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
) -> None:
    """Open the Prefect and MLflow pages on what was stored, until Ctrl-C."""
    from flows.servers import serve as serve_pages

    console = open_console()
    with serve_pages(Settings(), prefect_port, mlflow_port) as addresses:
        for name, address in addresses.items():
            console.print(f"{name:8} {address}")
        console.print("Ctrl-C stops both.")
        asyncio.run(_forever())


@app.command()
def doctor(
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A preset: what it keeps where on one GPU.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what this machine offers and how to get the rest, or what a preset would need."""
    from flows.doctor import examine, plan_memory
    from flows.printing.tables import doctor_table, plan_json, plan_note, plan_table

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


@app.command()
def bench(
    name: Annotated[
        str,
        typer.Argument(help="rollout, orchestration, learner, store, coach, sandbox or audit."),
    ],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure, as ratios within one run on this machine."""
    from flows.benches import run_bench
    from flows.printing.tables import bench_table

    report = run_bench(name, overrides or (), Settings())
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        open_console().print(bench_table(report))


@db.command("url")
def db_url() -> None:
    """Print the connection string of the store in use (psql understands it)."""
    from mappa_core.bootstrap import database_url

    typer.echo(database_url(Settings()))


@db.command("upgrade")
def db_upgrade() -> None:
    """Bring the store's schema up to this version."""
    from mappa_core.bootstrap import upgrade_database

    before, after = upgrade_database(Settings())
    typer.echo(f"schema {after}" if before == after else f"schema {before or 'empty'} -> {after}")


def _stored_run(name: str, settings: Settings) -> Run:
    from mappa_core.bootstrap import opened_store

    with opened_store(settings) as store:
        return store.run(name)


async def _forever() -> None:
    await asyncio.Event().wait()
