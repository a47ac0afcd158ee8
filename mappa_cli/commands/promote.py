"""`mappa promote`: from a trained run to the champions of the registry, and back."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from flows.ending import run_flow
from mappa_cli.commands.options import Json
from mappa_cli.printing.console import make_table, open_console
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.updates import RegisteredVersion
from mappa_core.core.settings import Settings
from mappa_core.evaluate.audit_objections import waivers


def promote_command(
    run: Annotated[
        str | None, typer.Argument(help="A run: its name, id or a prefix of either.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent.")] = None,
    override: Annotated[
        str | None, typer.Option("--override", help="Why to promote in spite of objections.")
    ] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option("--waive", help="An objection that is not to count: cannot-tell."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Print the registered models and who is champion.")
    ] = False,
    rollback: Annotated[
        tuple[str, str] | None,
        typer.Option("--rollback", metavar="MODEL VERSION", help="An earlier champion again."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a run's last checkpoints champions where gain and audit support it."""
    if sum((run is not None, listed, rollback is not None)) != 1:
        raise ConfigError("say what to promote: a RUN, --list, or --rollback MODEL VERSION")
    waivers(waive or ())
    if override is not None and not override.strip():
        raise ConfigError('an override needs a reason: --override "why"')
    if listed:
        _list(as_json)
    elif rollback is not None:
        _roll_back(*rollback)
    elif run is not None:
        _promote(run, agent, override, waive or (), as_json)


def _promote(
    run: str, agent: str | None, override: str | None, waive: Sequence[str], as_json: bool
) -> None:
    settings = Settings()
    from mappa_cli.servers import prefect_server

    with prefect_server(settings):
        from flows.promote import promote
        from mappa_core.app.promotion import summary

        case = run_flow(promote(run, agent, override, waive))
    if as_json:
        moved = {each.name: each.version for each in case.moved}
        gain = case.comparison.metrics() if case.comparison else {}
        promoted = {
            "promoted": moved,
            "audit": case.verdict,
            "objections": case.objections,
            "waived": list(case.waived),
        }
        typer.echo(json.dumps(promoted | gain))
        return
    typer.echo(summary(case, override))


def _list(as_json: bool) -> None:
    from mappa_core.app.databases import opened_records

    with opened_records(Settings()) as records:
        registry = records.registry
        found = [each for name in registry.models() for each in registry.versions(name)]
    if as_json:
        typer.echo(json.dumps([_as_json(each) for each in found]))
        return
    rows = [
        (
            each.name,
            each.version,
            str(each.run_id)[:8],
            str(each.step),
            " ".join(each.aliases),
            ", ".join(f"{key} {value}" for key, value in _notes(each).items()),
        )
        for each in found
        if each.aliases or _notes(each)
    ]
    columns = ("model", "version", "run", "updates", "aliases", "promotion")
    open_console().print(make_table("", columns, rows))


def _roll_back(model: str, version: str) -> None:
    from mappa_core.app.databases import opened_records
    from mappa_core.evaluate.promotion import roll_back

    with opened_records(Settings()) as records:
        before = roll_back(records.registry, model, version)
    typer.echo(
        f"champion of {model} is version {version}; it was {before}. The other agents of the team "
        "keep theirs."
    )


def _notes(version: RegisteredVersion) -> dict[str, str]:
    from mappa_core.evaluate.promotion import NOTE

    return {
        key.removeprefix(NOTE): value for key, value in version.tags.items() if key.startswith(NOTE)
    }


def _as_json(version: RegisteredVersion) -> dict[str, object]:
    return {
        "model": version.name,
        "version": version.version,
        "run_id": str(version.run_id),
        "agent": version.agent,
        "step": version.step,
        "aliases": version.aliases,
        "promotion": _notes(version),
    }
