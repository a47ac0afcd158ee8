"""The case a coach judges: one action, what came before it, and the facts that follow from that.

    turns, duties ─▶ which agent owes what, who made each file, who failed first
    outcome       ─▶ what was measured, where the policy lets the coach know

Every fact follows from the recorded turns, so a score made years later from SQL rests on the same.
Credit goes by who should have produced what: an agent that is stopped by a missing file is told
apart from the one that owed it.
"""

from collections.abc import Iterator, Mapping, Sequence

from mappa_core.core.file_trail import TrackedFile, files_after, missing_files, who_failed
from mappa_core.core.records.episodes import Episode, Outcome, Turn
from mappa_core.core.records.scores import CoachCase, Duty, Fact, LabelVisibility
from mappa_core.core.records.tools import Artifact

TASK = "came with the task"


def case_of(
    episode: Episode,
    turn: Turn,
    visibility: LabelVisibility,
    *,
    sample: int = 0,
    duties: tuple[Duty, ...] = (),
) -> CoachCase:
    """The evidence about one action, with as much of the truth as `visibility` allows."""
    full = visibility is LabelVisibility.FULL
    outcome = None if visibility is LabelVisibility.NEVER else episode.outcome
    return CoachCase(
        statement=episode.problem.statement,
        agent=turn.agent,
        messages=turn.observation.messages,
        text=turn.action.text,
        tool_result=turn.tool_result,
        earlier=episode.turns[: turn.index],
        task_type=episode.problem.task_type,
        facts=facts_of(episode.turns[: turn.index + 1], duties, outcome),
        outcome=outcome,
        expected_answer=episode.problem.answer if full else None,
        sample=sample,
        duties=duties,
    )


def facts_of(
    turns: Sequence[Turn], duties: Sequence[Duty], outcome: Outcome | None
) -> tuple[Fact, ...]:
    """The facts about the last of `turns`; without `duties` there is no file trail."""
    files = _file_facts(turns, duties) if duties else ()
    return (*files, *(_measured(outcome) if outcome is not None else ()))


def _file_facts(turns: Sequence[Turn], duties: Sequence[Duty]) -> Iterator[Fact]:
    judged, before = turns[-1], files_after(turns[:-1])
    for duty in duties:
        yield Fact(name=f"owed by {duty.agent}", text=", ".join(duty.files))
    yield Fact(name="made before this action and still there", text=_listed(before))
    yield from _touched(judged, before)
    yield from _lacking(turns, duties)


def _listed(files: Mapping[str, TrackedFile]) -> str:
    shown = [
        f"{name} (by {file.agent} in turn {file.turn}"
        + (f", stale: {file.stale})" if file.stale else ")")
        for name, file in sorted(files.items())
    ]
    return ", ".join(shown) or "nothing"


def _touched(judged: Turn, before: Mapping[str, TrackedFile]) -> Iterator[Fact]:
    result = judged.tool_result
    if result is None:
        return
    read = "not recorded" if result.read is None else _read(result.read, before)
    yield Fact(name="read by this action", text=read)
    if over := {file.name: before[file.name] for file in result.written if file.name in before}:
        yield Fact(name="overwritten by this action", text=_listed(over))
    if result.removed:
        gone = {name: before[name] for name in result.removed if name in before}
        others = [f"{name} ({TASK})" for name in result.removed if name not in before]
        text = ", ".join([_listed(gone)] * bool(gone) + others)
        yield Fact(name="removed by this action", text=text)


def _read(files: Sequence[Artifact], before: Mapping[str, TrackedFile]) -> str:
    return ", ".join(f"{file.name} ({_maker(file.name, before)})" for file in files) or "nothing"


def _maker(name: str, before: Mapping[str, TrackedFile]) -> str:
    made = before.get(name)
    return f"by {made.agent} in turn {made.turn}" if made else TASK


def _lacking(turns: Sequence[Turn], duties: Sequence[Duty]) -> Iterator[Fact]:
    agents = [duty.agent for duty in duties]
    judged = turns[-1]
    if judged.agent not in agents:
        return
    own = agents.index(judged.agent)
    missing = missing_files(duties[own], turns)
    name = f"owed by {judged.agent} and not there after this action"
    yield Fact(name=name, text=", ".join(missing) or "nothing")
    # The judged agent may still have turns; only those before it are done.
    failing = who_failed(duties[:own], turns)
    if failing is not None:
        text = f"{failing.agent}: it ended its turns without {', '.join(failing.missing)}"
        yield Fact(name="first to fail its duty", text=text)


def _measured(outcome: Outcome) -> Iterator[Fact]:
    if outcome.metric is None:
        return
    said = "nothing" if outcome.value is None else f"{outcome.metric} {outcome.value:.6g}"
    if outcome.skill is not None:
        said += f"; skill {outcome.skill:.3f} (0: no better than a constant, 1: perfect)"
    if outcome.detail is not None:
        said += f"; {outcome.detail}"
    yield Fact(name="the team's submission, measured against hidden labels", text=said)
    shown = [
        f"{figure.name} {figure.value:.3g} (a constant prediction: {figure.constant:.3g})"
        for figure in outcome.figures or ()
        if figure.value is not None
    ]
    if shown:
        text = ", ".join(shown)
        yield Fact(name="the same submission in figures that all tasks of its kind have", text=text)
