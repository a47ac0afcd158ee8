"""`mappa evaluate`: a run's trained team beside its base, on held-out problems."""

import json
from typing import Annotated

import typer

from flows.ending import run_flow
from mappa_cli.commands.options import Json, Overrides, RunName
from mappa_cli.printing.console import open_console
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.core.records.runs import Run
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
    settings = Settings()
    stored = _stored_run(run, settings)
    config = with_overrides(TrainConfig.model_validate(stored.config), overrides or ())
    from flows.recorder import check_recorder_load
    from mappa_cli.printing.progress import TerminalProgress
    from mappa_cli.servers import prefect_server
    from mappa_core.app.checks import check_inputs, check_same_weights
    from mappa_core.app.services import reporting_to
    from mappa_core.rollout.engines.opening import warming

    check_same_weights(stored, config, "an evaluation")
    check_recorder_load(config, check_inputs(config, settings))
    with (
        warming(config, settings),
        prefect_server(settings),
        TerminalProgress(open_console(stderr=True)) as progress,
        reporting_to(progress),
    ):
        from flows.evaluate import evaluate as evaluate_flow

        found = run_flow(evaluate_flow(stored.name, config, step))
    from mappa_cli.printing.evaluations import evaluation_json, print_evaluation

    if as_json:
        typer.echo(json.dumps(evaluation_json(found)))
    else:
        print_evaluation(open_console(), found)


def _stored_run(name: str, settings: Settings) -> Run:
    from mappa_core.app.databases import opened_store

    with opened_store(settings) as store:
        return store.runs.get_run(name)
