"""`mappa audit --before`: a coach sits its exam and answers what should not matter, untrained."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mappa_cli.printing.console import open_console
from mappa_core.audit.records import Exam
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_core.app.config import TrainConfig
    from mappa_core.audit.probes.probing import ProbeResult
    from mappa_core.coach.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRequest:
    """Which coach to ask, and what."""

    config: Path | None
    """The preset of the run to be; None for the defaults."""
    changes: Sequence[str]
    """Overrides of it."""
    margin: float
    """In points."""
    champ: Path | None
    """CHAMP's labelled solutions, for a further exam."""
    ask: bool
    """Whether to ask before spending."""


def audit_before(request: BeforeRequest, *, as_json: bool) -> bool:
    """Print what a coach made of it; whether it passed its exam and no probe says biased.

    Raises:
        ConfigError: The coach cannot be asked, or CHAMP's file cannot be used.
    """
    from mappa_cli.printing.audits import before_tables, exam_table
    from mappa_core.app.config_files import load_config
    from mappa_core.app.exam import said

    exams, found = asyncio.run(_examined(load_config(request.config, request.changes), request))
    if as_json:
        told = {name: _as_json(exam) for name, exam in zip(("exam", "champ"), exams, strict=False)}
        typer.echo(json.dumps({**told, **found.as_json()}))
    else:
        console = open_console()
        for table in (*map(exam_table, exams), *before_tables(found)):
            console.print(table)
        for exam in exams:
            console.print(said(exam), soft_wrap=True)
        console.print(f"verdict: [bold]{found.verdict}[/bold]")
    return found.verdict != "biased" and exams[0].passed


async def _examined(
    config: "TrainConfig", request: BeforeRequest
) -> "tuple[Sequence[Exam], ProbeResult]":
    """Let a coach sit what it has not sat yet, and ask it what should not matter."""
    from mappa_core.app.checks import check_caps, check_reading, coached_team, kinds_of
    from mappa_core.app.databases import opened_audit
    from mappa_core.app.exam import examined
    from mappa_core.audit.exam.champ import champ_pairs
    from mappa_core.audit.exam.sitting import set_paper
    from mappa_core.audit.probes.cases import questions
    from mappa_core.audit.probes.probing import expected, probe_coach
    from mappa_core.coach.opening import open_probe_coaches
    from mappa_core.rollout.problems import problem_source
    from mappa_core.rollout.teams import load_team

    team, settings = load_team(config.team, config.prompts, config.rollout), Settings()
    source, coached = problem_source(config.problems), coached_team(team)
    check_reading([config.coach.backend], team, source)
    check_caps(config.coach, team, kinds_of(source))
    wanted = questions(team, source.train(), config.coach.visibility)
    papers = [set_paper(team, coached, config.coach)]
    if request.champ is not None:
        papers.append(set_paper(team, coached, config.coach, champ_pairs(team, request.champ)))
    with opened_audit(settings) as audit:
        async with open_probe_coaches(config.coach, settings, coached) as coach:
            known = [audit.exam(paper.id) for paper in papers]
            missing = [paper for paper, exam in zip(papers, known, strict=True) if exam is None]
            calls = sum((one.expected for one in missing), expected(wanted, coach, config.coach))
            _confirm(config, calls, ask=request.ask)
            exams = [
                exam or await examined(coach.coach, paper, config, audit)
                for paper, exam in zip(papers, known, strict=True)
            ]
            return exams, await probe_coach(wanted, coach, request.margin)


def _confirm(config: "TrainConfig", calls: "Forecast", *, ask: bool) -> None:
    """Say what a model takes that is asked, and ask whether to go on where it may cost money."""
    from mappa_core.coach.forecast import lines
    from mappa_core.coach.opening import may_cost

    if not calls.calls:
        return
    for line in lines([(f"{config.coach.backend} {config.coach.model}", calls)]):
        typer.echo(line, err=True)
    if ask and may_cost(config.coach, calls):
        typer.confirm("go on?", abort=True, err=True)


def _as_json(exam: Exam) -> dict[str, object]:
    return {**asdict(exam), "id": str(exam.id)}
