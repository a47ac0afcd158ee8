"""`mappa audit RUN --experiment N`: the run's coach is asked about its stored actions again.

Answers stay as rows, so the next audit shows them without asking, and a larger N adds to them.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer

from mappa_cli.printing.console import open_console
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted

if TYPE_CHECKING:
    from mappa_core.audit.experiments.asking import ExperimentJob
    from mappa_core.coach.config import CoachModelConfig


def experiment(run: str, count: int, *, yes: bool) -> None:
    """Ask the coach of a stored run about a random sample of its actions.

    Raises:
        NotFound: No such run, or it has no scored training actions.
        ConfigError: The run's coach cannot be asked, or is another one now.
    """
    asyncio.run(_experiment(run, count, yes=yes))


async def _experiment(name: str, count: int, *, yes: bool) -> None:
    from mappa_core.app.checks import coached_team
    from mappa_core.app.config import TrainConfig
    from mappa_core.audit.experiments.asking import ask, plan_experiment, with_forecast
    from mappa_core.audit.experiments.changes import Asker
    from mappa_core.audit.store import AuditStore
    from mappa_core.coach.opening import open_probe_coaches
    from mappa_core.rollout.teams import load_team
    from mappa_core.rollout.teams.base import duties_of
    from mappa_core.store.opening import opened_store

    settings, console = Settings(), open_console(stderr=True)
    async with AsyncExitStack() as stack:
        store = stack.enter_context(opened_store(settings))
        audit = AuditStore(store.database)
        run = store.runs.get_run(name)
        config = TrainConfig.model_validate(run.config)
        team = load_team(run.team, config.prompts, config.rollout)
        opened = open_probe_coaches(config.coach, settings, coached_team(team))
        asker = Asker(
            coaches=await stack.enter_async_context(opened),
            task_types=audit.task_types(run.id),
            visibility=config.coach.visibility,
            duties=duties_of(team),
        )
        job = await asyncio.to_thread(plan_experiment, store, audit, run.id, asker, count)
        job = with_forecast(job, asker, config.coach)
        _confirm(job, config.coach, yes=yes)
        with console.status("asking the coach again"):
            unscored = await ask(job, audit, asker, lambda _: None)
    console.print(
        f"{counted(job.actions, 'action')} of {run.name}: {counted(job.calls, 'question')} asked, "
        f"{unscored} without a score"
    )


def _confirm(job: "ExperimentJob", config: "CoachModelConfig", *, yes: bool) -> None:
    """Say what the coach does not see and what asking takes; ask where it may cost money."""
    from mappa_core.coach.forecast import lines
    from mappa_core.coach.opening import may_cost

    console = open_console(stderr=True)
    if job.unseen:
        console.print(f"not asked, for the coach does not see it: {', '.join(job.unseen)}")
    if not job.expected.calls:
        return
    for line in lines([(f"{config.backend} {config.model}", job.expected)]):
        console.print(line)
    if not yes and may_cost(config, job.expected):
        typer.confirm("go on?", abort=True, err=True)
