"""`mappa rescore`: another coach's scores of stored actions, beside those that trained."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mappa_cli.commands.options import Json, RunName
from mappa_cli.printing.console import open_console
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.coach.config import CoachConfig
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted
from mappa_core.rollout.teams.base import Team

if TYPE_CHECKING:
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
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Actions, at most.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before spending.")] = False,
    as_json: Json = False,
) -> None:
    """Score a run's stored actions again, as rows beside those that trained; resumable."""
    result = asyncio.run(
        rescored_run(Settings(), run, coach, rubric_set, overrides or (), limit=limit, ask=not yes)
    )
    if as_json:
        typer.echo(json.dumps(result))


async def rescored_run(
    settings: Settings,
    run: str,
    coach: str,
    rubric_set: str | None,
    overrides: Sequence[str],
    *,
    limit: int | None,
    ask: bool,
) -> dict[str, float]:
    """Score what of a run a coach has not scored yet, after saying what it takes.

    Raises:
        NotFound: No such run.
        ConfigError: The coach cannot be asked.
    """
    from mappa_core.coach.rescore import coach_overrides
    from mappa_core.rollout.teams import load_team
    from mappa_core.store.opening import opened_store

    with opened_store(settings) as store:
        stored = store.runs.get_run(run)
        trained = TrainConfig.model_validate(stored.config)
        chosen = [*coach_overrides(coach, rubric_set), *overrides]
        config = with_overrides(trained, chosen).coach
        team = load_team(stored.team, trained.prompts)
        return await _rescored(store, stored, team, config, settings, limit=limit, ask=ask)


async def _rescored(
    store: "Store",
    run: Run,
    team: Team,
    config: CoachConfig,
    settings: Settings,
    *,
    limit: int | None,
    ask: bool,
) -> dict[str, float]:
    from mappa_core.app.checks import coached_team
    from mappa_core.coach.forecast import lines
    from mappa_core.coach.opening import coach_rubrics, open_coaches
    from mappa_core.coach.rescore import plan_rescoring, rescore, rescore_plan
    from mappa_core.core.garbage import freeze_garbage_collector
    from mappa_core.rollout.teams.base import duties_of

    console = open_console(stderr=True)
    only = config.model_copy(update={"second": CoachConfig().second})
    async with AsyncExitStack() as stack:
        coach, _ = open_coaches(only, settings, coached_team(team), stack)
        plan = rescore_plan(coach, only, duties_of(team))
        rubrics = coach_rubrics(only, coached_team(team))
        job = await asyncio.to_thread(plan_rescoring, store, run, plan, rubrics, only, limit)
        missing = counted(job.count, "action")
        console.print(f"{missing} of {run.name} without a score of this coach")
        if rubrics is not None:
            for line in lines([(f"{only.backend} {only.model}", job.expected)]):
                console.print(line)
        if job.count and ask and rubrics is not None:
            typer.confirm("go on?", abort=True, err=True)
        freeze_garbage_collector()
        with console.status("scoring") as status:
            done = 0

            def progress(actions: int) -> None:
                nonlocal done
                done += actions
                status.update(f"scored {done} of {job.count} actions")

            result = await rescore(store, plan, job, progress)
    console.print(
        f"{result.scored} scored, {result.unscored} unscored, {counted(result.calls, 'call')}, "
        f"{result.cost_usd:.4f} dollars"
    )
    return asdict(result)
