"""`mappa evaluate`: a run's trained team beside its base, on held-out problems."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from flows.ending import run_flow
from mappa_cli.commands.options import Json, Overrides, RunName
from mappa_cli.commands.running import stored_run, watched
from mappa_cli.printing.console import open_console
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings


def evaluate_command(
    run: RunName,
    overrides: Overrides = None,
    step: Annotated[
        int | None, typer.Option("--step", help="Updates the policies had had; default the last.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="Also compare by an attribute of problems, e.g. year."),
    ] = None,
    gain: Annotated[
        float | None,
        typer.Option("--gain", help="Say what it takes to find a gain of so many points."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a run's trained team with its base on held-out problems."""
    from mappa_core.app.checks import check_same_weights
    from mappa_core.app.played_types import as_played

    if gain is not None and not 0 < gain < 100:
        raise ConfigError(f"--gain {gain:g} is in points: more than 0 and less than 100")
    stored = stored_run(run)
    own = as_played(stored, TrainConfig.model_validate(stored.config))
    config = with_overrides(own, overrides or ())
    check_same_weights(stored, config, "an evaluation")
    with watched(config, Settings(), open_console(stderr=True), trains=False):
        from flows.evaluate import evaluate as evaluate_flow

        found = run_flow(evaluate_flow(stored.name, config, step, tuple(by or ())))
    from mappa_cli.printing.evaluations import evaluation_json, power_table, print_evaluation
    from mappa_core.evaluate.power import plans_of

    plans = {} if gain is None else plans_of(found, gain / 100)
    if as_json:
        planned = {"power": {name: asdict(each) for name, each in plans.items()}} if plans else {}
        typer.echo(json.dumps({**evaluation_json(found), **planned}))
        return
    console = open_console()
    print_evaluation(console, found)
    if plans:
        console.print(power_table(plans))
