"""The rules for agents that hand on files: credit goes by who should have made what.

    no program           0, unclosed 1; 7 where it stops because all it owes is there
    it fails             2 by its own fault, 4 where a file is missing that another agent owed
    it runs              5, 3 in shares of the files it owes and writes, 1 for reading what it was
                         given, 1 for a summary; at most 4 while a file it owes is not there
    it destroys          1, where the file of an agent before it is gone

What a turn finds already done earns nothing again: a program that leaves its own older file
standing gets no credit for it. The evidence is the file trail, which the sandbox records from
outside; nothing a program prints about its files is believed.
"""

import re
from collections.abc import Sequence

from mappa_core.coach.rules.judgement import Judgement
from mappa_core.core.file_trail import files_after
from mappa_core.core.records.scores import CoachCase, Duty
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.core.text import clipped, last_program, opens_program

INCOMPLETE = 4.0
"""Most points for a program that runs and leaves a file missing that its agent owes."""
QUOTED_CHARACTERS = 80
_NO_SUCH_FILE = re.compile(r"No such file or directory: '(?:[^']*/)?([^'/]+)'")


def judge_pipeline(case: CoachCase) -> Judgement | None:
    """Judge one action of a team with duties; None where this agent owes no file."""
    own = next((duty for duty in case.duties if duty.agent == case.agent), None)
    if own is None:
        return None
    if last_program(case.text) is None or case.tool_result is None:
        return _judge_words(case, own)
    if case.tool_result.status is not ToolStatus.OK:
        return _judge_failure(case, case.tool_result)
    return _judge_files(case, own, case.tool_result)


def _judge_words(case: CoachCase, own: Duty) -> Judgement:
    present = files_after(case.earlier)
    if all(name in present and not present[name].stale for name in own.files):
        return Judgement(points=7, observations=("it stops, and all it owes is there",))
    opened = opens_program(case.text)
    what = "it opens a code block and never closes it" if opened else "it writes no program"
    return Judgement(points=float(opened), observations=(what,))


def _judge_failure(case: CoachCase, result: ToolResult) -> Judgement:
    last = (result.stderr.strip().splitlines() or [""])[-1]
    seen = f"its program fails ({result.status.value}), saying {clipped(last, QUOTED_CHARACTERS)!r}"
    lacking = _NO_SUCH_FILE.search(last)
    culprit = _owner_upstream(case, lacking[1]) if lacking else None
    if culprit is None:
        return Judgement(points=2, observations=(seen,))
    whose = f"{culprit} should have left {lacking[1] if lacking else ''} and did not"
    return Judgement(points=4, observations=(seen, whose))


def _owner_upstream(case: CoachCase, name: str) -> str | None:
    """The agent before this one in the chain that owes `name` and has not left it."""
    if name in files_after(case.earlier):
        return None
    return next((duty.agent for duty in _upstream(case) if name in duty.files), None)


def _upstream(case: CoachCase) -> Sequence[Duty]:
    agents = [duty.agent for duty in case.duties]
    return case.duties[: agents.index(case.agent)]


def _judge_files(case: CoachCase, own: Duty, result: ToolResult) -> Judgement:
    written = {file.name for file in result.written}
    made = [name for name in own.files if name in written]
    kept = {name for name, file in files_after(case.earlier).items() if not file.stale}
    lacking = [name for name in own.files if name not in written | (kept - set(result.removed))]
    seen = ["its program runs"]
    if destroyed := _destroyed(case, result):
        return Judgement(points=1, observations=(*seen, f"it destroys {', '.join(destroyed)}"))
    points = 5.0 + 3.0 * len(made) / len(own.files)
    seen.append(f"it writes {_listed(made)} of what it owes")
    used, unread = _use_of_upstream(case, result)
    if unread:
        seen.append(f"it reads nothing of what {unread} left")
    printed = bool(result.stdout.strip())
    seen.append("it prints a summary" if printed else "it prints nothing for the next agent")
    if lacking:
        # Whatever else it did, the next agent cannot go on.
        lack = f"{', '.join(lacking)} is not there when it ends"
        return Judgement(points=min(points, INCOMPLETE), observations=(*seen, lack))
    return Judgement(points=points + used + printed, observations=tuple(seen))


def _destroyed(case: CoachCase, result: ToolResult) -> list[str]:
    owed = {name for duty in _upstream(case) for name in duty.files}
    return [name for name in result.removed if name in owed]


def _use_of_upstream(case: CoachCase, result: ToolResult) -> tuple[float, str | None]:
    """One point for reading a file of the agent just before; the agent it ignored."""
    if result.read is None:
        return 0.0, None  # this sandbox cannot know
    present = files_after(case.earlier)
    left = [(d.agent, {n for n in d.files if n in present}) for d in _upstream(case)]
    offered = [(agent, names) for agent, names in left if names]
    if not offered:
        return 1.0, None
    agent, names = offered[-1]
    used = bool(names & {file.name for file in result.read})
    return float(used), None if used else agent


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
