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


def other_coach(request: "RescoreRequest", database: str | None, *, as_json: bool) -> None:
    """Print each update as the other coach would have made it.

    A stored scorer may be named by its beginning; with `database`, no coach is asked.

    Raises:
        NotFound: No such run, several such coaches, or none whose scores could be had.
    """
    from mappa_cli.printing.audits import update_table
    from mappa_core.app.databases import opened_audit
    from mappa_core.audit.other_coach import Scorer, updates_under

    wanted = Scorer(name=request.coach.replace(":", " ").strip(), rubric=request.rubric)
    with opened_audit(Settings(), database) as store:
        missing = wanted.missing(store, request.run)
    if missing and database is None:
        _score_again(request)
    with opened_audit(Settings(), database) as store:
        name, updates = updates_under(store, request.run, wanted)
    if as_json:
        rows = [{**asdict(update), "differs": update.differs} for update in updates]
        typer.echo(json.dumps({"coach": name, "updates": rows}))
        return
    console = open_console()
    console.print(update_table(name, updates))
    differs, flipped = sum(u.differs for u in updates), sum(u.flipped for u in updates)
    console.print(
        f"{flipped} of {sum(u.actions for u in updates)} advantages change sign; "
        f"{differs} of {len(updates)} updates would have differed"
    )


def _score_again(request: "RescoreRequest") -> None:
    """As `mappa rescore`, on all of the run's training actions."""
    from mappa_cli.commands.rescore import rescored_run
    from mappa_core.coach.config import RULE
    from mappa_core.coach.provider_table import PROVIDERS

    backend = request.coach.partition(":")[0]
    if backend not in (RULE, *PROVIDERS):
        raise ConfigError(
            f"no stored second coach is called {request.coach}: name one, or one to ask, as "
            "backend:model"
        )
    asyncio.run(rescored_run(request))
