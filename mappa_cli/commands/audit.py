"""`mappa audit`: is the coach biased, since when, and what did it do to the policy?

Exit code 3 where it is biased, so that CI can gate on it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from mappa_cli.commands.options import Json, check_file
from mappa_cli.commands.rescore import RescoreRequest
from mappa_cli.printing.console import open_console
from mappa_core.audit.records import Finding
from mappa_core.audit.statistics.counting import Rate, Unknowable
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_core.audit.run_audit import RunAudit
    from mappa_core.audit.watch.drifting import DriftState

BIASED = 3
"""Exit code of a biased verdict."""


OneRun = Annotated[str | None, typer.Argument(help="A run: its name, id or a prefix of either.")]
Margin = Annotated[
    float, typer.Option("--margin", help="Biases below this many points do not matter.")
]
Report = Annotated[
    Path | None, typer.Option("--report", help="Write one self-contained HTML page.")
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        help="What if this coach had scored? backend:model; asked first where it has not.",
    ),
]
Rubric = Annotated[str | None, typer.Option("--rubric", help="With --against: by this rubric set.")]
Debias = Annotated[
    bool, typer.Option("--debias", help="Store a correction for audit.correction to use.")
]
Database = Annotated[
    str | None, typer.Option("--database", help="Read this Postgres instead; write nothing.")
]
Experiments = Annotated[
    int | None,
    typer.Option(
        "--experiment",
        min=1,
        metavar="N",
        help="First ask the run's coach again about N stored actions, one thing changed in each.",
    ),
]
Before = Annotated[bool, typer.Option("--before", help="Probe the coach before it trains anybody.")]
Preset = Annotated[
    Path | None, typer.Option("--config", help="With --before: the preset of the run to be.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="With --before or --against: an override, KEY=VALUE."),
]
Champ = Annotated[
    Path | None,
    typer.Option("--champ", help="With --before: CHAMP's v0.json, another exam of 84 cases."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before spending.")]
SelfTest = Annotated[bool, typer.Option("--self-test", help="How often is the audit itself wrong?")]
Simulations = Annotated[
    int | None, typer.Option("--simulations", min=0, help="Simulated runs behind each rate.")
]


def audit_command(  # noqa: PLR0913 (one argument per option)
    run: OneRun = None,
    as_json: Json = False,
    report: Report = None,
    margin: Margin = 0.5,
    against: Against = None,
    rubric: Rubric = None,
    debias: Debias = False,
    database: Database = None,
    experiment: Experiments = None,
    before: Before = False,
    config: Preset = None,
    changes: Changes = None,
    champ: Champ = None,
    yes: Yes = False,
    self_test: SelfTest = False,
    simulations: Simulations = None,
) -> None:
    """Say whether a coach is biased, since when, and what it did to the policy."""
    other = against is not None
    alone = not (before or self_test or other)
    _refuse(
        {
            f"--margin is above 0 points, not {margin:g}": not 0 < margin < math.inf,
            "name one run to audit, or give --before or --self-test instead": (run is None)
            is not (before or self_test),
            "--debias writes a correction, and --database writes nothing: use one": debias
            and database is not None,
            "--config needs --before": config is not None and not before,
            "--champ needs --before": champ is not None and not before,
            "--rubric needs --against": rubric is not None and not other,
            "--set needs --before or --against": bool(changes) and not (before or other),
            "--debias needs a RUN alone": debias and not alone,
            "--report needs a RUN alone": report is not None and not alone,
            "--experiment needs a RUN alone": experiment is not None and not alone,
            "--experiment asks a coach and stores its answers, and --database writes nothing: use "
            "one": experiment is not None and database is not None,
            "--self-test takes at least one of --simulations": self_test and simulations == 0,
        }
    )
    if report is not None:
        check_file(report, "--report")
    if self_test:
        _self_test(simulations, margin, as_json=as_json)
    elif before:
        from mappa_cli.commands.audit_before import BeforeRequest, audit_before

        asked = BeforeRequest(
            config=config, changes=changes or (), margin=margin, champ=champ, ask=not yes
        )
        if not audit_before(asked, as_json=as_json):
            raise typer.Exit(BIASED)
    elif against is not None:
        from mappa_cli.commands.audit_against import other_coach

        wanted = RescoreRequest(
            run=run or "", coach=against, rubric=rubric, changes=changes or (), ask=not yes
        )
        other_coach(wanted, database, as_json=as_json)
    else:
        if experiment is not None:
            from mappa_cli.commands import audit_experiment

            audit_experiment.experiment(run or "", experiment, yes=yes)
        _audit(run or "", report, margin, database, simulations, debias=debias, as_json=as_json)


def _refuse(objections: Mapping[str, bool]) -> None:
    """Refuse options that make no sense together, or would be ignored.

    Raises:
        ConfigError: The first objection that holds.
    """
    for message, holds in objections.items():
        if holds:
            raise ConfigError(message)


def _audit(
    run: str,
    report: Path | None,
    margin: float,
    database: str | None,
    simulations: int | None,
    *,
    debias: bool,
    as_json: bool,
) -> None:
    from mappa_core.app.databases import opened_audit
    from mappa_core.audit.corrections import store_correction
    from mappa_core.audit.run_audit import DEFAULT_SIMULATIONS, audit_run

    count = DEFAULT_SIMULATIONS if simulations is None else simulations
    record = database is None
    with opened_audit(Settings(), database) as store:
        audited = audit_run(store, run, margin, record=record, simulations=count)
        correction = store_correction(store, audited) if debias else None
    if report is not None:
        from mappa_core.audit.report.page import html

        page = html(audited.seen, audited.result, audited.rates, recorded=record)
        report.write_text(page, "utf-8")
    result, made = audited.result, None if correction is None else str(correction.id)
    if as_json:
        said = {
            "run": audited.seen.run.name,
            "verdict": result.verdict,
            "experiment": bool(result.experiment),
            "observational": result.observational,
            "margin": margin,
            "look": audited.seen.look,
            "look_counted": audited.seen.counted,
            **_rates(audited.rates),
            "correction": made,
            "drift": _drift(result.drift),
            "findings": [_as_json(finding) for finding in result.findings],
        }
        typer.echo(json.dumps(said))
    else:
        _print(audited, made)
    if result.verdict == "biased":
        raise typer.Exit(BIASED)


def _rates(rates: Sequence[Rate | Unknowable]) -> dict[str, object]:
    """Each rate's share, with its interval beside, and why there is none of the others."""
    counted = [rate for rate in rates if isinstance(rate, Rate)]
    return {
        "rates": {rate.name: rate.share for rate in counted},
        "rate_intervals": {rate.name: rate.interval() for rate in counted},
        "unknowable_rates": {r.name: r.reason for r in rates if isinstance(r, Unknowable)},
    }


def _drift(found: "DriftState | None") -> dict[str, object] | None:
    """What changed while it trained, and every change of the coach's model, behind it or not."""
    if found is None:
        return None
    return {
        "cause": found.cause,
        "since": found.since,
        "earliest": found.earliest,
        "latest": found.latest,
        "task_types": found.task_types,
        "model_changes": [asdict(change) for change in found.changes],
    }


def _print(audited: "RunAudit", correction: str | None) -> None:
    from mappa_cli.printing.audits import finding_tables, watch_lines
    from mappa_core.audit.report.text import look_of, said_of

    console = open_console()
    for table in finding_tables(audited.result.findings):
        console.print(table)
    for rate in audited.rates:
        console.print(said_of(rate))
    if correction is not None:
        console.print(f"train with it: audit.correction={correction}")
    if audited.seen.look > 1 or not audited.seen.counted:
        console.print(look_of(audited.seen))
    for line in watch_lines(audited):
        console.print(line)
    _print_verdict(console, audited)


def _print_verdict(console: Console, audited: "RunAudit") -> None:
    result = audited.result
    if result.experiment:
        console.print(f"observational verdict: {result.observational}")
    console.print(_verdict(result.verdict))
    if not result.experiment:
        console.print(
            "It rests on a regression alone; `mappa audit RUN --experiment 200` asks the coach."
        )
    if result.verdict == "cannot tell":
        from mappa_core.audit.needed import what_would_tell

        console.print(f"To tell would take {what_would_tell(audited.seen, result)}.")


def _verdict(verdict: str) -> Text:
    return Text.assemble("verdict: ", (verdict, "bold"))


def _self_test(simulations: int | None, margin: float, *, as_json: bool) -> None:
    from mappa_cli.printing.audits import rate_table
    from mappa_core.audit.statistics.selftest import RUNS, self_test

    rates = self_test(RUNS if simulations is None else simulations, margin=margin)
    if as_json:
        typer.echo(json.dumps([{**asdict(rate), "share": rate.share} for rate in rates]))
        return
    open_console().print(rate_table(rates))
    if not all(rate.kept for rate in rates):
        raise typer.Exit(1)


def _as_json(finding: Finding) -> dict[str, object]:
    return {**asdict(finding), "id": str(finding.id), "run_id": str(finding.run_id)}
