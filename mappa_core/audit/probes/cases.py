"""The questions of `mappa audit --before`: null and worked actions of a team on some problems.

Worked actions are a scripted team's: it computes the right answer, or one that is off by one, in a
program that prints it, and says so. Messages and earlier turns are the team's own, so a coach sees
what it would see in training.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice, product, zip_longest

from mappa_core.audit.probes.features import null_actions, null_case
from mappa_core.coach.case import case_of
from mappa_core.coach.forecast import assumed_turn
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, Observation, Outcome, Problem, Turn
from mappa_core.core.records.scores import CoachCase, LabelVisibility
from mappa_core.core.records.tools import Artifact
from mappa_core.rollout.teams.base import AgentSpec, Team, duties_of

PROBLEMS_PER_TYPE = 6
MOST_WORKED = 36
"""Worked actions that are probed; each is asked about with every feature."""
REPEATED = 12
"""Worked actions that are scored several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullAction:
    """A null policy's action."""

    agent: str
    policy: str
    task_type: str
    case: CoachCase


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedAction:
    """A scripted action, and how its episode came out."""

    case: CoachCase
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Everything a coach is going to be asked."""

    nulls: tuple[NullAction, ...]
    worked: tuple[WorkedAction, ...]
    repeated: tuple[WorkedAction, ...]
    """Those that are scored several times, of as many problems as there are."""


def questions(
    team: Team, problems: Iterable[Problem], visibility: Mapping[str, LabelVisibility]
) -> Questions:
    """What the coach of a team is going to be asked.

    Args:
        team: Whose actions it is to judge.
        problems: Of two task types at least; some of each are used.
        visibility: What it may know of the truth, by agent.

    Raises:
        ConfigError: The problems are of one task type.
    """
    chosen = _by_type(problems)
    worked = tuple(_worked(team, chosen, visibility))
    return Questions(
        nulls=tuple(_nulls(team, chosen)),
        worked=worked[:MOST_WORKED],
        repeated=tuple(islice(_by_turns(worked), REPEATED)),
    )


def _by_turns(worked: Sequence[WorkedAction]) -> Iterator[WorkedAction]:
    """One of each problem, then a second: of the next agent, or of wrong work, at each problem."""
    by_problem = defaultdict[str, list[WorkedAction]](list)
    for item in worked:
        by_problem[item.case.statement].append(item)
    turned = [
        [*items[at % len(items) :], *items[: at % len(items)]]
        for at, items in enumerate(by_problem.values())
    ]
    return (one for row in zip_longest(*turned) for one in row if one is not None)


def _by_type(problems: Iterable[Problem]) -> Sequence[Sequence[Problem]]:
    by_type = defaultdict[str, list[Problem]](list)
    for problem in problems:
        if len(by_type[problem.task_type]) < PROBLEMS_PER_TYPE:
            by_type[problem.task_type].append(problem)
    if len(by_type) < 2:
        raise ConfigError("all problems are of one task type: there is nothing to prefer")
    return list(by_type.values())


def _nulls(team: Team, by_type: Sequence[Sequence[Problem]]) -> Iterator[NullAction]:
    """Every null policy of every agent on the problems."""
    for agent in team.agents:
        for policy, text in null_actions().items():
            for problem in (problem for problems in by_type for problem in problems):
                yield NullAction(
                    agent=agent.name,
                    policy=policy,
                    task_type=problem.task_type,
                    case=null_case(problem, agent.name, policy, text),
                )


def _worked(
    team: Team,
    by_type: Sequence[Sequence[Problem]],
    visibility: Mapping[str, LabelVisibility],
) -> Iterator[WorkedAction]:
    """Scripted actions, right and wrong ones, taking turns over task types."""
    duties = duties_of(team)
    problems = [one for row in zip_longest(*by_type) for one in row if one is not None]
    for problem, success in product(problems, (True, False)):
        outcome = _outcome(problem, success=success)
        episode = replace(_played(team, problem, success=success), outcome=outcome)
        for turn in episode.turns:
            visible = visibility.get(turn.agent, LabelVisibility.NEVER)
            yield WorkedAction(case=case_of(episode, turn, visible, duties=duties), outcome=outcome)


def _played(team: Team, problem: Problem, *, success: bool) -> Episode:
    """An episode of the scripted team, without its outcome."""
    specs = {agent.name: agent for agent in team.agents}
    run_id = ids.content_id("probe", success)
    episode = Episode(
        id=ids.episode_id(run_id, "train", 1, problem.id, 0),
        run_id=run_id,
        phase="train",
        iteration=1,
        problem=problem,
        rollout_index=0,
    )
    for _ in range(sum(agent.max_turns for agent in team.agents)):
        observation = team.next_observation(episode)
        if observation is None:
            break
        spec = specs[observation.agent]
        episode = episode.with_turn(_turn(team, spec, observation, episode, success=success))
    return episode


def _outcome(problem: Problem, *, success: bool) -> Outcome:
    return Outcome(success=success, answer=_answer(problem, success=success), method="scripted")


def _turn(
    team: Team,
    spec: AgentSpec,
    observation: Observation,
    episode: Episode,
    *,
    success: bool,
) -> Turn:
    answer = _answer(episode.problem, success=success)
    text = f"I compute it.\n```python\nprint({answer!r})\n```\nThe answer is \\boxed{{{answer}}}."
    code = team.code_in(spec.name, text)
    assumed = assumed_turn(
        observation, len(episode.turns), episode.run_id, max_tokens=1, runs_code=code is not None
    )
    result = assumed.tool_result
    if result is not None and code is not None:
        made = tuple(_file(name, answer) for name in spec.makes)
        result = replace(result, code=code, stdout=f"{answer}\n", written=made)
    return replace(assumed, action=replace(assumed.action, text=text), tool_result=result)


def _file(name: str, content: str) -> Artifact:
    data = f"{name} {content}".encode()
    return Artifact(name=name, size_bytes=len(data), sha256=sha256(data).hexdigest())


def _answer(problem: Problem, *, success: bool) -> str:
    """The expected answer, or one that is off by one; files are worked on without one."""
    if not problem.answer.lstrip("-").isdecimal():
        return "done" if success else "failed"
    return problem.answer if success else str(int(problem.answer) + 1)
