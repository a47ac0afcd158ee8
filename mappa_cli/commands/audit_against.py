"""`mappa audit RUN --against COACH`: what if another coach, or another rubric, had scored?

Where that coach's scores are not stored yet, the run is scored again first, with the estimate of
what it takes and a question; the scores stay as rows, so the next time costs nothing.
"""

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from mappa_cli.printing.console import open_console
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_cli.commands.rescore import RescoreRequest
    from mappa_core.audit.other_coach import Against
    from mappa_core.audit.statistics.regression import Estimate
    from mappa_core.core.records.scores import CoachIdentity


def other_coach(request: "RescoreRequest", database: str | None, *, as_json: bool) -> None:
    """Print each update as the other coach would have made it.

    A stored scorer may be named by its beginning; with `database`, no coach is asked. With changes
    of the configuration it is the coach that they make.

    Raises:
        NotFound: No such run, several such coaches, or none whose scores could be had.
    """
    from mappa_cli.printing.audits import update_table
    from mappa_core.app.databases import opened_audit
    from mappa_core.audit.other_coach import Scorer, updates_under

    wanted = Scorer(name=request.coach.replace(":", " ").strip(), rubric=request.rubric)
    with opened_audit(Settings(), database) as store:
        missing = wanted.missing(store, request.run)
    if (missing or request.changes) and database is None:
        coach = _score_again(request)
        wanted = Scorer(name=f"{coach.coach} {coach.model} ", rubric=coach.rubric_version)
    with opened_audit(Settings(), database) as store:
        found = updates_under(store, request.run, wanted)
    beyond = found.beyond
    if as_json:
        rows = [asdict(update) for update in found.updates]
        excess = None if beyond is None else {"estimate": beyond.value, "interval": _ends(beyond)}
        said = {"coach": found.scorer, "updates": rows, "other_sign_beyond_noise": excess}
        typer.echo(json.dumps(said))
        return
    console = open_console()
    console.print(update_table(found.scorer, found.updates))
    flipped, actions = (
        sum(u.flipped for u in found.updates),
        sum(u.actions for u in found.updates),
    )
    console.print(f"{flipped} of {actions} advantages change sign; {_beyond(found, request.run)}")


def _beyond(found: "Against", run: str) -> str:
    """What of that is more than the noise of the coach that trained."""
    if found.beyond is None:
        return (
            "how many would, had its own coach been asked again, is not known: score it again by "
            f"that coach, `mappa rescore {run} --coach ...` with coach.repeats=2"
        )
    low, high = _ends(found.beyond)
    differs = sum(update.differs is True for update in found.updates)
    known = sum(update.floor is not None for update in found.updates)
    return (
        f"beyond its own coach's noise, {found.beyond.value:+.1%} ({low:+.1%} to {high:+.1%}); "
        f"{differs} of {known} updates are shown to have differed"
    )


def _ends(estimate: "Estimate") -> tuple[float, float]:
    return estimate.interval()


def _score_again(request: "RescoreRequest") -> "CoachIdentity":
    """As `mappa rescore`, on all of the run's training actions; who has scored them now."""
    from mappa_cli.commands.rescore import rescored_run
    from mappa_core.coach.config import RULE
    from mappa_core.coach.provider_table import PROVIDERS

    backend = request.coach.partition(":")[0]
    if backend not in (RULE, *PROVIDERS):
        raise ConfigError(
            f"no stored second coach is called {request.coach}: name one, or one to ask, as "
            "backend:model"
        )
    return asyncio.run(rescored_run(request)).coach
