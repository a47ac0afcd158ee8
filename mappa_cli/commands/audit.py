"""`mappa audit`: is the coach biased, since when, and what did it do to the policy?

Exit code 3 where it is biased, so that CI can gate on it.
"""

import asyncio
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mappa_cli.commands.options import Json, check_file
from mappa_cli.printing.console import open_console
from mappa_core.audit.records import Finding
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_core.app.config import TrainConfig
    from mappa_core.audit.probes.probing import ProbeResult
    from mappa_core.audit.run_audit import RunAudit

BIASED = 3
"""Exit code of a biased verdict."""


def audit_command(  # noqa: PLR0913 (one argument per option)
    run: Annotated[
        str | None, typer.Argument(help="A run: its name, id or a prefix of either.")
    ] = None,
    as_json: Json = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write one self-contained HTML page.")
    ] = None,
    margin: Annotated[
        float, typer.Option("--margin", help="Biases below this many points do not matter.")
    ] = 0.5,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="What if this coach had scored? backend:model; asked first where it has not.",
        ),
    ] = None,
    rubric: Annotated[
        str | None, typer.Option("--rubric", help="With --against: by this rubric set.")
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
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="With --before or --against: an override, KEY=VALUE."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before spending.")] = False,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="How often is the audit itself wrong?")
    ] = False,
    simulations: Annotated[
        int | None, typer.Option("--simulations", min=0, help="Simulated runs behind each rate.")
    ] = None,
) -> None:
    """Say whether a coach is biased, since when, and what it did to the policy."""
    alone = not (before or self_test or against is not None)
    _check(run, margin, before=before, self_test=self_test, debias=debias, database=database)
    _check_used("--config", config is not None, "--before", before)
    _check_used("--rubric", rubric is not None, "--against", against is not None)
    _check_used("--set", bool(changes), "--before or --against", before or against is not None)
    _check_used("--debias", debias, "a RUN alone", alone)
    _check_used("--report", report is not None, "a RUN alone", alone)
    if self_test and simulations == 0:
        raise ConfigError("--self-test takes at least one of --simulations")
    if report is not None:
        check_file(report, "--report")
    if self_test:
        _self_test(simulations, margin, as_json=as_json)
    elif before:
        _before(config, changes or [], margin, yes=yes, as_json=as_json)
    elif against is not None:
        from mappa_cli.commands.audit_against import other_coach

        other_coach(
            run or "", against, rubric, changes or [], database, ask=not yes, as_json=as_json
        )
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
    if not 0 < margin < math.inf:
        raise ConfigError(f"--margin is above 0 points, not {margin:g}")
    if (run is None) is not (before or self_test):
        raise ConfigError("name one run to audit, or give --before or --self-test instead")
    if debias and database is not None:
        raise ConfigError("--debias writes a correction, and --database writes nothing: use one")


def _check_used(option: str, given: bool, needed: str, there: bool) -> None:
    """Refuse an option that would be ignored."""
    if given and not there:
        raise ConfigError(f"{option} needs {needed}")


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
        rates = {rate.name: rate.share for rate in audited.rates}
        said = {
            "run": audited.seen.run.name,
            "verdict": result.verdict,
            "margin": margin,
            "rates": rates,
            "correction": made,
            "findings": [_as_json(finding) for finding in result.findings],
        }
        typer.echo(json.dumps(said))
    else:
        _print(audited, made)
    if result.verdict == "biased":
        raise typer.Exit(BIASED)


def _print(audited: "RunAudit", correction: str | None) -> None:
    from mappa_cli.printing.audits import finding_tables

    console = open_console()
    for table in finding_tables(audited.result.findings):
        console.print(table)
    for rate in audited.rates:
        low, high = rate.interval()
        console.print(f"{rate.name}: {rate.share:.0%} ({low:.0%} to {high:.0%}, simulated)")
    if correction is not None:
        console.print(f"train with it: audit.correction={correction}")
    console.print(_verdict(audited.result.verdict))


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


def _before(
    config: Path | None, changes: list[str], margin: float, *, yes: bool, as_json: bool
) -> None:
    from mappa_cli.printing.audits import before_tables
    from mappa_core.app.config_files import load_config

    found = asyncio.run(_probed(load_config(config, changes), margin, ask=not yes))
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        console = open_console()
        for table in before_tables(found):
            console.print(table)
        console.print(_verdict(found.verdict))
    if found.verdict == "biased":
        raise typer.Exit(BIASED)


async def _probed(config: "TrainConfig", margin: float, *, ask: bool) -> "ProbeResult":
    from mappa_core.audit.probes.cases import questions
    from mappa_core.audit.probes.probing import expected, probe_coach
    from mappa_core.coach.forecast import lines
    from mappa_core.coach.opening import opened_coach
    from mappa_core.rollout.problems import problem_source
    from mappa_core.rollout.teams import load_team

    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems).train()
    wanted = questions(team, problems, config.coach.visibility)
    async with opened_coach(config, Settings()) as coach:
        calls = expected(wanted, coach, config.coach)
        if calls.calls:
            for line in lines([(f"{config.coach.backend} {config.coach.model}", calls)]):
                typer.echo(line, err=True)
            if ask:
                typer.confirm("go on?", abort=True, err=True)
        return await probe_coach(wanted, coach, margin)


def _as_json(finding: Finding) -> dict[str, object]:
    return {**asdict(finding), "id": str(finding.id), "run_id": str(finding.run_id)}
