"""`mappa label`: a person scores stored actions, blind to what any coach gave them.

Labels are rows as soon as they are given, so stopping and going on is free. What is shown is what
a coach sees: the task, the turns before, what the agent saw and wrote, what its program did; no
score, no outcome, no expected answer.
"""

import getpass
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer
from rich.console import Console

from mappa_cli.commands.options import RunName
from mappa_cli.printing.console import open_console, print_heading
from mappa_core.audit.records import SAMPLES, Candidate, HumanLabel, Picked
from mappa_core.core.errors import ConfigError, NotFound
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.tools import ToolResult
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_core.audit.store import AuditStore
    from mappa_core.store.store import Store

AT_MOST = 1_000
"""Actions one sitting can have in its queue, of each reason."""
KEYS = "score 0 to 10, halves too; s skip, b back, n WORDS note on the last one, q stop"


def label(
    run: RunName,
    reviewer: Annotated[
        str | None, typer.Option("--reviewer", help="Who labels; default the system's user.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Show only contested, unsure or random actions."),
    ] = None,
    for_audit: Annotated[
        bool,
        typer.Option("--for-audit", help="Show what tells most: as many of each agent and type."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=AT_MOST, help="Labels in this sitting, at most.")
    ] = 50,
) -> None:
    """Score a run's actions yourself, blind to the coach; stop and go on as you like."""
    from mappa_core.audit.store import AuditStore
    from mappa_core.store.opening import opened_store

    if for_audit and only is not None:
        raise ConfigError("--for-audit picks by itself: give it without --only")
    name = (reviewer or getpass.getuser()).strip()
    if not name:
        raise ConfigError("--reviewer is a name: labels without one cannot be compared")
    with opened_store(Settings()) as store:
        audit = AuditStore(store.database)
        found = audit.run(run)
        sitting = _Sitting(store=store, audit=audit, run_id=found.id, reviewer=name)
        given = sitting.run_through("audit" if for_audit else _picked(only), limit)
    sitting.console.print(
        f"{given} labelled by {name}, {len(sitting.known)} in all; "
        f"`mappa audit {found.name}` compares them with the coach"
    )


def _picked(only: str | None) -> Picked | None:
    match only:
        case None | "contested" | "unsure" | "random":
            return only
        case _:
            raise ConfigError(f"--only {only}: choose contested, unsure or random")


@dataclass(slots=True, kw_only=True)
class _Sitting:
    """A person labels one action after another."""

    store: "Store"
    audit: "AuditStore"
    run_id: UUID
    reviewer: str
    console: Console = field(default_factory=open_console)
    known: dict[UUID, HumanLabel] = field(default_factory=dict[UUID, HumanLabel])

    def run_through(self, only: Picked | None, limit: int) -> int:
        """Show one action after another; returns how many were labelled.

        Raises:
            NotFound: There is nothing to label, or nothing left.
        """
        labels = self.audit.labels(self.run_id, self.reviewer)
        self.known = {given.action_id: given for given in labels}
        waiting = self._queue(only)
        shown: list[tuple[Candidate, Picked]] = []
        given, position = 0, 0
        while given < limit:
            if position == len(shown):
                shown += islice(waiting, 1)
            if position == len(shown):
                break
            match self._ask(*shown[position], given + 1, limit):
                case "q":
                    break
                case "b":
                    position = max(position - 1, 0)
                case answer:
                    given += answer == "labelled"
                    position += 1
        if not shown:
            raise NotFound("there is nothing to label (any more): no scored action is left")
        return given

    def _queue(self, only: Picked | None) -> Iterator[tuple[Candidate, Picked]]:
        from mappa_core.audit.labelling import queue

        wanted = self.audit.to_label(self.run_id, AT_MOST)
        for candidate, picked in queue(wanted, self.known, only=only):
            given = self.known.get(candidate.action_id)
            if given is None:
                yield candidate, picked
            elif picked in SAMPLES:
                # Drawn by the sample, and labelled already: it counts for the sample as well.
                self._keep(replace(given, picked=picked))

    def _ask(self, candidate: Candidate, picked: Picked, number: int, limit: int) -> str:
        """Show an action and read keys until it is labelled, skipped or left."""
        episode = self.store.episodes.get_episode(str(candidate.episode_id))
        print_heading(self.console, f"{number} of {limit}")
        show(self.console, episode, episode.turns[candidate.turn_index])
        while True:
            typed = typer.prompt(KEYS, prompt_suffix=": ").strip()
            if typed in ("q", "b", "s"):
                return typed
            if typed.startswith("n "):
                self._note(typed[2:].strip())
                continue
            score = as_score(typed)
            if score is None:
                self.console.print(f"{typed} is none of these")
                continue
            action, name = candidate.action_id, self.reviewer
            self._keep(HumanLabel(action_id=action, labeller=name, score=score, picked=picked))
            return "labelled"

    def _note(self, words: str) -> None:
        if not self.known:
            self.console.print("there is no label yet to add a note to")
            return
        last = next(reversed(self.known.values()))
        self._keep(replace(last, note=words))

    def _keep(self, given: HumanLabel) -> None:
        self.audit.add_labels([given])
        self.known.pop(given.action_id, None)
        self.known[given.action_id] = given


def as_score(typed: str) -> float | None:
    """A score in [0, 10] in half points, or None where it is none."""
    try:
        score = float(typed.replace(",", "."))
    except ValueError:
        return None
    return score if 0 <= score <= 10 and (2 * score).is_integer() else None


def show(console: Console, episode: Episode, turn: Turn) -> None:
    """Print what a coach would see of an action."""
    _part(console, "the task", episode.problem.statement)
    for earlier in episode.turns[: turn.index]:
        _part(console, f"{earlier.agent} wrote before", earlier.action.text)
        _program(console, earlier.tool_result)
    last = turn.observation.messages[-1:]
    for message in last:
        if message.content != episode.problem.statement:
            _part(console, f"what {turn.agent} saw last", message.content)
    _part(console, f"{turn.agent} wrote: judge this", turn.action.text, style="bold")
    _program(console, turn.tool_result)


def _program(console: Console, result: ToolResult | None) -> None:
    if result is not None:
        printed = "\n".join(part for part in (result.stdout, result.stderr) if part)
        _part(console, f"its program: {result.status.value}", printed or "(printed nothing)")


def _part(console: Console, title: str, text: str, style: str = "") -> None:
    console.print(title, style="cyan")
    console.print(text or "(nothing)", style=style)
