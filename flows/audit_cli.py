"""`mappa audit`: is the coach biased, since when, and what did it do to the policy?

Exit code 3 where it is biased, so that CI can gate on it.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mappa_core.domain.audit import Finding
from mappa_core.domain.errors import ConfigError
from mappa_core.settings import Settings

BIASED = 3
"""Exit code of a biased verdict."""


def audit_command(  # noqa: PLR0913 (one argument per option)
    run: Annotated[
        str | None, typer.Argument(help="A run: its name, id or a prefix of either.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write one self-contained HTML page.")
    ] = None,
    margin: Annotated[
        float, typer.Option("--margin", help="Biases below this many points do not matter.")
    ] = 0.5,
    against: Annotated[
        str | None,
        typer.Option("--against", help="What if this second coach had scored? (stored scores)"),
    ] = None,
    debias: Annotated[
        bool, typer.Option("--debias", help="Store a correction for audit.correction to use.")
    ] = False,
    database: Annotated[
        str | None, typer.Option("--database", help="Read this Postgres instead; write nothing.")
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="Probe the coach before it trains anybody.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="With --before: the preset of the run to be.")
    ] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="How often is the audit itself wrong?")
    ] = False,
    simulations: Annotated[
        int | None, typer.Option("--simulations", min=0, help="Simulated runs behind each rate.")
    ] = None,
) -> None:
    """Say whether a coach is biased, since when, and what it did to the policy."""
    _check(run, margin, before=before, self_test=self_test, debias=debias, database=database)
    if self_test:
        _self_test(simulations, margin, as_json=as_json)
    elif before:
        _before(config, margin, as_json=as_json)
    elif against is not None:
        _against(run or "", against, database, as_json=as_json)
    else:
        _audit(run or "", report, margin, database, simulations, debias=debias, as_json=as_json)


def _check(
    run: str | None,
    margin: float,
    *,
    before: bool,
    self_test: bool,
    debias: bool,
    database: str | None,
) -> None:
    """Refuse what makes no sense together.

    Raises:
        ConfigError: Always with how to mend it.
    """
    if margin <= 0:
        raise ConfigError(f"--margin is above 0 points, not {margin:g}")
    if (run is None) is not (before or self_test):
        raise ConfigError("name one run to audit, or give --before or --self-test instead")
    if debias and database is not None:
        raise ConfigError("--debias writes a correction, and --database writes nothing: use one")


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
    from flows.audit_run import DEFAULT_SIMULATIONS, audit_stored
    from flows.audit_run import debias as store_correction
    from mappa_core.bootstrap import opened_audit

    count = DEFAULT_SIMULATIONS if simulations is None else simulations
    console = Console(highlight=False)
    with opened_audit(Settings(), database) as store:
        record = database is None
        audited = audit_stored(store, run, margin, record=record, simulations=count)
        correction = store_correction(store, audited) if debias else None
    if report is not None:
        from mappa_core.auditing.report import html

        report.write_text(html(audited.material, audited.result, audited.rates), "utf-8")
    result = audited.result
    if as_json:
        rates = {rate.name: rate.share for rate in audited.rates}
        typer.echo(
            json.dumps(
                {
                    "run": audited.material.run.name,
                    "verdict": result.verdict,
                    "margin": margin,
                    "rates": rates,
                    "correction": None if correction is None else str(correction.id),
                    "findings": [_as_json(finding) for finding in result.findings],
                }
            )
        )
    else:
        for table in tables(result.findings):
            console.print(table)
        for rate in audited.rates:
            low, high = rate.interval()
            console.print(f"{rate.name}: {rate.share:.0%} ({low:.0%} to {high:.0%}, simulated)")
        if correction is not None:
            console.print(f"train with it: audit.correction={correction.id}")
        console.print(f"verdict: [bold]{result.verdict}[/bold]")
    if result.verdict == "biased":
        raise typer.Exit(BIASED)


def tables(findings: Sequence[Finding]) -> list[Table]:
    """The findings for a terminal: one table per question that has an answer."""
    from mappa_core.auditing.report import TITLES, interval

    made: list[Table] = []
    for kind, title in TITLES.items():
        rows = [finding for finding in findings if finding.kind == kind]
        if not rows:
            continue
        table = Table("of", "against", "episodes", "estimate", "unit", "n", "verdict", title=title)
        for row in rows:
            of = row.subject if row.kind != "update_share" else f"{row.subject} {row.iteration}"
            more = row.detail.get("more_actions")
            verdict = f"{row.verdict} (+{more} actions)" if more and row.verdict else row.verdict
            table.add_row(
                of, row.against, row.stratum, interval(row), row.unit, str(row.actions), verdict
            )
        made.append(table)
    return made


def _self_test(simulations: int | None, margin: float, *, as_json: bool) -> None:
    from mappa_core.auditing.selftest import RUNS, self_test

    rates = self_test(RUNS if simulations is None else simulations, margin=margin)
    if as_json:
        typer.echo(json.dumps([{**asdict(rate), "share": rate.share} for rate in rates]))
        return
    table = Table("simulated", "rate", "95 % interval", "promise", "kept")
    for rate in rates:
        low, high = rate.interval()
        kept = "yes" if rate.kept else "no"
        table.add_row(
            rate.name, f"{rate.share:.1%}", f"{low:.1%} to {high:.1%}", rate.promise, kept
        )
    Console().print(table)
    if not all(rate.kept for rate in rates):
        raise typer.Exit(1)


def _before(config: Path | None, margin: float, *, as_json: bool) -> None:
    from flows.audit_before import examine_coach
    from mappa_core.adapters.config_files import load_config

    found = asyncio.run(examine_coach(load_config(config, ()), margin))
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        for table in found.tables():
            Console().print(table)
    if found.verdict == "biased":
        raise typer.Exit(BIASED)


def _against(run: str, coach: str, database: str | None, *, as_json: bool) -> None:
    from flows.audit_run import against
    from mappa_core.bootstrap import opened_audit

    with opened_audit(Settings(), database) as store:
        name, updates = against(store, run, coach)
    if as_json:
        rows = [{**asdict(update), "differs": update.differs} for update in updates]
        typer.echo(json.dumps({"coach": name, "updates": rows}))
        return
    columns = ("agent", "iteration", "scored by both", "other sign", "likeness", "differs")
    table = Table(*columns, title=f"had {name} been the coach")
    for update in updates:
        table.add_row(
            update.agent,
            str(update.iteration),
            str(update.actions),
            str(update.flipped),
            f"{update.likeness:.3f}",
            "yes" if update.differs else "no",
        )
    Console().print(table)


def _as_json(finding: Finding) -> dict[str, object]:
    return {**asdict(finding), "id": str(finding.id), "run_id": str(finding.run_id)}
