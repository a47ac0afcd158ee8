"""`mappa evaluate`: a run's trained team beside its base, on held-out problems."""

import json
from typing import Annotated

import typer

from flows.ending import run_flow
from mappa_cli.commands.options import Json, Overrides, RunName
from mappa_cli.commands.running import stored_run, watched
from mappa_cli.printing.console import open_console
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.core.settings import Settings


def evaluate_command(
    run: RunName,
    overrides: Overrides = None,
    step: Annotated[
        int | None, typer.Option("--step", help="Updates the policies had had; default the last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a run's trained team with its base on held-out problems."""
    from mappa_core.app.checks import check_same_weights

    stored = stored_run(run)
    config = with_overrides(TrainConfig.model_validate(stored.config), overrides or ())
    check_same_weights(stored, config, "an evaluation")
    with watched(config, Settings(), open_console(stderr=True), trains=False):
        from flows.evaluate import evaluate as evaluate_flow

        found = run_flow(evaluate_flow(stored.name, config, step))
    from mappa_cli.printing.evaluations import evaluation_json, print_evaluation

    if as_json:
        typer.echo(json.dumps(evaluation_json(found)))
    else:
        print_evaluation(open_console(), found)
