"""`mappa rescore`: another coach's scores of stored actions, beside those that trained.

At the end a table says how the two agree, over all actions that both have scored by now.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from mappa_cli.commands.options import Json, RunName
from mappa_cli.printing.console import open_console
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.coach.config import RULE, CoachConfig
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted

if TYPE_CHECKING:
    from mappa_core.audit.statistics.agreement import BesideTrainer
    from mappa_core.coach.rescore import RescoreJob, RescoreResult
    from mappa_core.coach.scoring import ScorePlan
    from mappa_core.store.store import Store


def rescore(
    run: RunName,
    coach: Annotated[str, typer.Option("--coach", help="backend:model, e.g. rule, gemini:NAME.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides, e.g. coach.temperature=0.3.")
    ] = None,
    rubric_set: Annotated[
        str | None, typer.Option("--rubric", help="Rubric set; default the run's.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="So many actions, drawn at random; more later keep these."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before spending.")] = False,
    as_json: Json = False,
) -> None:
    """Score a run's stored actions again, beside those that trained; resumable.

    At the end, by agent: correlation and mean difference with those that trained.
    """
    request = RescoreRequest(
        run=run, coach=coach, rubric=rubric_set, changes=overrides or (), limit=limit, ask=not yes
    )
    result = asyncio.run(rescored_run(request))
    lines = _agreement(run, result)
    if as_json:
        rows = [{**asdict(line), "interval": line.difference.interval()} for line in lines]
        typer.echo(json.dumps({"run": run, **asdict(result), "agreement": rows}))
    elif lines:
        from mappa_cli.printing.audits import beside_table

        open_console().print(beside_table(_name(result), lines))


def _agreement(run: str, result: "RescoreResult") -> "Sequence[BesideTrainer]":
    from mappa_core.app.databases import opened_audit
    from mappa_core.audit.other_coach import agreement_with

    with opened_audit(Settings()) as audit:
        return agreement_with(audit, run, result.coach)


def _name(result: "RescoreResult") -> str:
    return f"{result.coach.coach} {result.coach.model}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreRequest:
    """Which run to score again, by which coach."""

    run: str
    """Name, id or a prefix of either."""
    coach: str
    """`backend` or `backend:model`."""
    rubric: str | None
    """Rubric set; None for the run's."""
    changes: Sequence[str]
    """Overrides of the coach's configuration."""
    limit: int | None = None
    """Actions, drawn at random; None for all."""
    ask: bool
    """Whether to ask before spending."""


async def rescored_run(request: RescoreRequest) -> "RescoreResult":
    """Score what of a run a coach has not scored yet, after saying what it takes.

    Raises:
        NotFound: No such run.
        ConfigError: The coach cannot be asked.
    """
    from mappa_core.app.checks import check_caps, check_reading, coached_team
    from mappa_core.coach.opening import coach_rubrics, open_coaches
    from mappa_core.coach.rescore import coach_overrides, plan_rescoring, rescore_plan
    from mappa_core.rollout.problems import problem_source
    from mappa_core.rollout.teams import load_team
    from mappa_core.rollout.teams.base import duties_of
    from mappa_core.store.opening import opened_store

    settings = Settings()
    with opened_store(settings) as store:
        run = store.runs.get_run(request.run)
        trained = TrainConfig.model_validate(run.config)
        chosen = [*coach_overrides(request.coach, request.rubric), *request.changes]
        other = with_overrides(trained, chosen).coach
        config = other.model_copy(update={"second": CoachConfig().second})
        team = load_team(run.team, trained.prompts, trained.rollout)
        if config.backend == RULE:
            check_reading([RULE], team, problem_source(trained.problems))
        played = store.episodes.list_episodes(run.id)
        check_caps(config, team, {each.task_type for each in played if each.phase == "train"})
        async with AsyncExitStack() as stack:
            coach, _ = open_coaches(config, settings, coached_team(team), stack)
            plan = rescore_plan(coach, config, duties_of(team))
            rubrics = coach_rubrics(config, coached_team(team))
            job = await asyncio.to_thread(
                plan_rescoring, store, run, plan, rubrics, config, request.limit
            )
            open_console(stderr=True).print(
                f"{counted(job.count, 'action')} of {run.name} without a score of this coach"
            )
            if rubrics is not None:
                _confirm(job, f"{config.backend} {config.model}", ask=request.ask)
            return await _rescored(store, plan, job)


def _confirm(job: "RescoreJob", coach: str, *, ask: bool) -> None:
    """Say what a coach that costs money takes, and ask whether to go on."""
    from mappa_core.coach.forecast import lines

    for line in lines([(coach, job.expected)]):
        open_console(stderr=True).print(line)
    if job.count and ask:
        typer.confirm("go on?", abort=True, err=True)


async def _rescored(store: "Store", plan: "ScorePlan", job: "RescoreJob") -> "RescoreResult":
    """Score, with a count of what is done."""
    from mappa_core.coach.rescore import rescore
    from mappa_core.core.garbage import freeze_garbage_collector

    console, done = open_console(stderr=True), 0
    freeze_garbage_collector()
    with console.status("scoring") as status:

        def progress(actions: int) -> None:
            nonlocal done
            done += actions
            status.update(f"scored {done} of {job.count} actions")

        result = await rescore(store, plan, job, progress)
    console.print(
        f"{result.scored} scored, {result.unscored} unscored, {counted(result.calls, 'call')}, "
        f"{result.cost_usd:.4f} dollars"
    )
    return result
