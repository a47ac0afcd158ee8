"""Tells which agent wrote, read and removed which file, and what of it still holds.

    turns ─▶ files_after ─▶ {name: TrackedFile}   what lies there, and whether it is stale
          ─▶ who_failed  ─▶ Failing | None        the agent whose missing file stopped the team

Everything here is a function of the recorded turns, so it can be asked again later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mappa_core.core.records.episodes import Turn
from mappa_core.core.records.scores import Duty
from mappa_core.core.records.tools import Artifact, ToolResult, ToolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedFile:
    """One file of a workspace, with its origin."""

    artifact: Artifact
    agent: str
    """The agent that wrote it."""
    turn: int
    """Index of the turn that wrote it."""
    made_from: Mapping[str, str]
    """Content (sha256) of each file that was read in that turn, by name."""
    stale: str | None = None
    """Why it no longer stands for what was done since; None while it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """The first agent of the chain that did not leave what it owes."""

    agent: str
    missing: tuple[str, ...]


def files_after(turns: Sequence[Turn]) -> Mapping[str, TrackedFile]:
    """The files that the turns left in the workspace, by name; the task's own are not among them.

    A file is stale when a later program of its writer failed without writing it again, or when a
    file it was made from has been rewritten or removed since.
    """
    files: dict[str, TrackedFile] = {}
    for turn in turns:
        if turn.tool_result is not None:
            files = _after(files, turn, turn.tool_result)
    return files


def _after(
    files: Mapping[str, TrackedFile], turn: Turn, result: ToolResult
) -> dict[str, TrackedFile]:
    read = {file.name: file.sha256 for file in result.read or ()}
    written = {
        file.name: TrackedFile(artifact=file, agent=turn.agent, turn=turn.index, made_from=read)
        for file in result.written
    }
    kept = {
        name: file
        for name, file in files.items()
        if name not in written and name not in result.removed
    }
    current = kept | written
    gone = set(result.removed)
    return {name: _aged(file, turn, current, gone) for name, file in current.items()}


def _aged(
    file: TrackedFile, turn: Turn, current: Mapping[str, TrackedFile], gone: set[str]
) -> TrackedFile:
    if file.turn == turn.index or file.stale is not None:
        return file
    if file.agent == turn.agent and not ran_well(turn):
        return replace(file, stale=f"the program of turn {turn.index + 1} failed before writing it")
    changed = [
        name
        for name, sha256 in file.made_from.items()
        if name in gone or (name in current and current[name].artifact.sha256 != sha256)
    ]
    if changed:
        return replace(file, stale=f"{changed[0]} has changed since turn {file.turn + 1}")
    return file


def missing_files(duty: Duty, turns: Sequence[Turn]) -> tuple[str, ...]:
    """What an agent owes and the workspace does not hold, in the duty's order."""
    present = files_after(turns)
    return tuple(name for name in duty.files if name not in present)


def who_failed(duties: Sequence[Duty], turns: Sequence[Turn]) -> Failing | None:
    """The first agent of the chain that ended its last turn without all it owes.

    What a later agent made in its stead does not clear it: the file was missing when it was due.
    An agent that has not acted yet has not failed.
    """
    for duty in duties:
        own = [turn.index for turn in turns if turn.agent == duty.agent]
        if own and (missing := missing_files(duty, turns[: own[-1] + 1])):
            return Failing(agent=duty.agent, missing=missing)
    return None


def ran_well(turn: Turn) -> bool:
    """Whether the turn's program was there and ended well."""
    return turn.tool_result is not None and turn.tool_result.status is ToolStatus.OK
