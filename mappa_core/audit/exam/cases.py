"""The exam's cases: scripted work whose order of worth is plain, in a team's own words.

    right > wrong > nothing      right > lucky      success > crash      wrong > wrong and praised

Everything before the judged action is right work, so that the cases of a problem differ in that
action alone. Observations are the team's own: a coach sees what it will see in training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count, cycle

from mappa_core.audit.exam.script import Task, Work, Written, tasks_of
from mappa_core.coach.case import case_of
from mappa_core.coach.forecast import assumed_turn
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Observation, Turn
from mappa_core.core.records.scores import CoachCase, LabelVisibility
from mappa_core.core.records.tools import Artifact, ToolStatus
from mappa_core.rollout.teams.base import AgentSpec, Team, duties_of

RIGHT_OVER_WRONG = "right over wrong"
ORDER: Sequence[tuple[Work, Work, str]] = (
    (Work.RIGHT, Work.WRONG, RIGHT_OVER_WRONG),
    (Work.RIGHT, Work.PRAISED, "plain over praised"),
    (Work.WRONG, Work.PRAISED, "plain over praised"),
    (Work.RIGHT, Work.LUCKY, "right over lucky"),
    (Work.RIGHT, Work.CRASHED, "success over crash"),
    (Work.WRONG, Work.CRASHED, "success over crash"),
    (Work.RIGHT, Work.EMPTY, "work over nothing"),
    (Work.WRONG, Work.EMPTY, "work over nothing"),
)
"""Which work deserves more than which, and what such a pair is called."""
KINDS = tuple(dict.fromkeys(kind for *_, kind in ORDER))
"""What pairs are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamCase:
    """One case, and what its action is worth."""

    problem: int
    """Which of the exam's problems, from 0."""
    work: Work
    case: CoachCase


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPair:
    """Two cases of one problem, of which one deserves the higher score."""

    kind: str
    better: ExamCase
    worse: ExamCase

    @property
    def problem(self) -> int:
        """Which of the exam's problems it is about."""
        return self.better.problem

    @property
    def agent(self) -> str:
        """Whose work it is."""
        return self.better.case.agent


def exam_pairs(team: Team) -> tuple[OrderedPair, ...]:
    """Make the pairs of a team's exam, from four cases of each problem.

    Every problem asks about one agent, in turns. The truth stays hidden, whatever
    `coach.visibility` allows: what is asked is whether the coach finds it.
    """
    asked = zip(count(), cycle(team.agents), tasks_of(team), strict=False)
    return tuple(
        OrderedPair(kind=kind, better=cases[better], worse=cases[worse])
        for number, agent, task in asked
        for works in [_works(agent, number // len(team.agents), task)]
        for cases in [written_cases(team, agent, number, task, works)]
        for better, worse, kind in ORDER
        if better in cases and worse in cases
    )


def distinct_cases(pairs: Sequence[OrderedPair]) -> tuple[ExamCase, ...]:
    """The cases of some pairs, each once: what a coach is asked."""
    return tuple(dict.fromkeys(case for pair in pairs for case in (pair.better, pair.worse)))


def _works(agent: AgentSpec, turn: int, task: Task) -> tuple[Work, ...]:
    """Right, wrong, right by luck or praised, crashed or empty; `turn` is the agent's, from 0."""
    crashes = agent.runs_code and turn % 3 < 2
    return (
        Work.RIGHT,
        Work.WRONG,
        Work.LUCKY if task.has_luck else Work.PRAISED,
        Work.CRASHED if crashes else Work.EMPTY,
    )


def written_cases(
    team: Team, agent: AgentSpec, number: int, task: Task, works: Sequence[Work]
) -> Mapping[Work, ExamCase]:
    """The agent's first turn, done in each way, after right work of those before it.

    Args:
        team: Whose agents act.
        agent: Whose work is judged.
        number: Which of the exam's problems it is.
        task: The problem and what is written on it.
        works: The ways.
    """
    run_id = ids.content_id("exam")
    episode = Episode(
        id=ids.episode_id(run_id, "train", 1, task.problem.id, 0),
        run_id=run_id,
        phase="train",
        iteration=1,
        problem=task.problem,
        rollout_index=0,
    )
    specs = {spec.name: spec for spec in team.agents}
    while (seen := team.next_observation(episode)) is not None:
        if seen.agent == agent.name:
            ways = {work: _turn(team, episode, seen, task.written(agent, work)) for work in works}
            return {
                work: ExamCase(problem=number, work=work, case=_case(team, episode, turn))
                for work, turn in ways.items()
            }
        right = task.written(specs[seen.agent], Work.RIGHT)
        episode = episode.with_turn(_turn(team, episode, seen, right))
    return {}


def _case(team: Team, episode: Episode, turn: Turn) -> CoachCase:
    played = episode.with_turn(turn)
    return case_of(played, turn, LabelVisibility.NEVER, duties=duties_of(team))


def _turn(team: Team, episode: Episode, seen: Observation, written: Written) -> Turn:
    code = team.code_in(seen.agent, written.text)
    turn = assumed_turn(
        seen, len(episode.turns), episode.run_id, max_tokens=1, runs_code=code is not None
    )
    result = turn.tool_result
    if result is not None and isinstance(code, str):
        result = replace(
            result,
            code=code,
            status=ToolStatus.NONZERO if written.error else ToolStatus.OK,
            exit_code=1 if written.error else 0,
            stdout=written.printed,
            stderr=written.error,
            written=tuple(_file(name) for name in written.files),
        )
    return replace(turn, action=replace(turn.action, text=written.text), tool_result=result)


def _file(name: str) -> Artifact:
    data = name.encode()
    return Artifact(name=name, size_bytes=len(data), sha256=sha256(data).hexdigest())
