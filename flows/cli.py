"""The command line; `mappa --help` lists the commands, and most have a module of their own here.

Exit codes: 0 done, 2 bad input, 1 failed, 130 stopped by Ctrl-C. Every error is one line.
Prefect, MLflow and torch take seconds to import, so each command imports what it needs.
"""

import asyncio
import json
import sys
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from flows import exchange
from flows.audit_cli import audit_command
from flows.coach_commands import register as register_coach_commands
from flows.config_commands import config as config_commands
from flows.label import label
from flows.promote_command import promote_command
from flows.reproduce import reproduce
from flows.run_report import report_command
from mappa_core.adapters.config_files import load_config, with_overrides
from mappa_core.config import RESUMABLE, TrainConfig
from mappa_core.domain.errors import ConfigError, MappaError, UserError
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
T = TypeVar("T")
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        app()
    except MappaError as error:
        errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        errors.print(f"mappa: {error}")
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@app.command()
def train(
    overrides: Overrides = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A preset, e.g. configs/quickstart.yaml.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run (name or id).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")
    ] = False,
    like: Annotated[
        str | None,
        typer.Option("--like", help="With --dry-run: predict costs by how this run went."),
    ] = None,
) -> None:
    """Train a team and compare it with its base on held-out problems."""
    resumable = (*(f"coach.{key}" for key in RESUMABLE), "audit.stop_on")
    if resume is not None and (
        config is not None or not all(each.startswith(resumable) for each in overrides or ())
    ):
        raise ConfigError(
            "a resumed run keeps its configuration: leave out --config and overrides, but for "
            f"{', '.join(resumable)}"
        )
    if (dry_run and resume is not None) or (like is not None and not dry_run):
        raise ConfigError("--dry-run takes no --resume, and --like needs --dry-run")
    settings = Settings()
    resolved = load_config(config, overrides or ()) if resume is None else None
    if dry_run and resolved is not None:
        typer.echo(_as_yaml(resolved))
        _print_forecast(resolved, settings, like)
        return
    with ExitStack() as stack:
        if resume is not None:
            run = _stored_run(resume, settings)
            stored, resume = TrainConfig.model_validate(run.config), str(run.id)
            resolved = with_overrides(stored, overrides or ())
        assert resolved is not None
        _run_training(resolved, resume, settings, stack)


def _print_forecast(config: TrainConfig, settings: Settings, like: str | None) -> None:
    """What the coaches will take, on stderr, so that stdout stays the configuration."""
    if config.coach.backend == "rule" and config.coach.second.backend == "rule":
        typer.echo("coach: the rule coach costs nothing", err=True)
        return
    from flows.forecast import forecast_run, habits_of
    from mappa_core.adapters.problems import problem_source
    from mappa_core.coaching.forecast import lines
    from mappa_core.teams import load_team

    habits = None
    if like is not None:
        from mappa_core.bootstrap import opened_store

        with opened_store(settings) as store:
            habits = habits_of(store, store.run(like))
    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems)
    for line in lines(forecast_run(config, settings, team, problems, habits)):
        typer.echo(line, err=True)


def _run_training(
    config: TrainConfig, resume: str | None, settings: Settings, stack: ExitStack
) -> None:
    from flows.progress import RichWatcher
    from flows.recorder import check_recorder_load
    from flows.servers import prefect_server
    from mappa_core.bootstrap import check_inputs, warming, watching

    check_recorder_load(config, check_inputs(config, settings))
    stack.enter_context(warming(config, settings))
    console = Console()
    stack.enter_context(prefect_server(settings))
    watcher = stack.enter_context(RichWatcher(console))
    stack.enter_context(watching(watcher))
    from flows.train import train as train_flow

    try:
        comparison = _run(train_flow(config, resume))
    except KeyboardInterrupt:
        if watcher.run_name is not None:
            console.print(
                f"stopped; go on with: mappa train --resume {watcher.run_name}", highlight=False
            )
        raise typer.Exit(INTERRUPTED) from None
    stack.close()
    from flows.tables import comparison_table, gain, where_next

    console.print(comparison_table(comparison))
    console.print(gain(comparison), highlight=False)
    console.print(where_next(watcher.run_name or ""), highlight=False)


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
    from flows.progress import RichWatcher
    from flows.servers import prefect_server
    from mappa_core.bootstrap import warming, watching

    with (
        warming(config, settings),
        prefect_server(settings),
        RichWatcher(Console(stderr=True)) as watcher,
        watching(watcher),
    ):
        from flows.evaluate import evaluate as evaluate_flow

        found = _run(evaluate_flow(stored.name, config, step))
    from flows.evaluation_tables import evaluation_json, print_evaluation

    if as_json:
        typer.echo(json.dumps(evaluation_json(found)))
    else:
        print_evaluation(Console(), found)


@app.command()
def runs(as_json: Json = False) -> None:
    """List the runs in the store, newest first."""
    from flows.tables import runs_json, runs_table
    from mappa_core.bootstrap import opened_store

    with opened_store(Settings()) as store:
        found, claimed = store.runs(), store.claimed_runs()
    if as_json:
        typer.echo(json.dumps(runs_json(found, claimed)))
    else:
        Console().print(runs_table(found, claimed))


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="A run, or an episode: name, id or prefix.")],
    coach: Annotated[
        bool, typer.Option("--coach", help="Each score's exact prompt and reply, cost, latency.")
    ] = False,
) -> None:
    """Print a run's iterations and episodes, or an episode's whole conversation with scores."""
    from flows.tables import print_episode, print_run
    from mappa_core.bootstrap import opened_store
    from mappa_core.domain.errors import NotFound

    console = Console()
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

    console = Console()
    with serve_pages(Settings(), prefect_port, mlflow_port) as addresses:
        for name, address in addresses.items():
            console.print(f"{name:8} {address}", highlight=False)
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
    from flows.tables import doctor_table, plan_table

    if plan is not None:
        planned = plan_memory(load_config(plan, ()), Settings())
        Console().print(plan_table(planned))
        raise typer.Exit(0 if planned.fits else 1)
    findings = examine(Settings())
    if as_json:
        typer.echo(json.dumps([finding.as_json() for finding in findings]))
    else:
        Console().print(doctor_table(findings))


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
    from flows.tables import bench_table

    report = run_bench(name, overrides or (), Settings())
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        Console().print(bench_table(report))


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


def _as_yaml(config: TrainConfig) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json"))).rstrip()


def _run(coroutine: Coroutine[object, object, T]) -> T:
    return asyncio.run(coroutine)


async def _forever() -> None:
    await asyncio.Event().wait()
