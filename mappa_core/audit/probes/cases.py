"""The questions of `mappa audit --before`: null and worked actions on a configuration's problems.

Worked actions are a scripted team's: it computes the right answer, or one that is off by one, in a
program that prints it, and says so. Messages and earlier turns are the team's own, so a coach sees
what it would see in training.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest

from mappa_core.app.config import TrainConfig
from mappa_core.audit.probes.features import null_actions, null_case
from mappa_core.coach.case import case_of
from mappa_core.coach.forecast import assumed_turn
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, Observation, Outcome, Problem, Turn
from mappa_core.core.records.scores import CoachCase, LabelVisibility
from mappa_core.core.records.tools import Artifact
from mappa_core.rollout.episode import new_episode
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import AgentSpec, Team, duties_of

PROBLEMS_PER_TYPE = 6
MOST_WORKED = 36
"""Worked actions that are probed; each is asked about with every feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """A null policy's action."""

    agent: str
    policy: str
    task_type: str
    case: CoachCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A scripted action, and how its episode came out."""

    case: CoachCase
    outcome: Outcome


def nulls(config: TrainConfig) -> tuple[Null, ...]:
    """Every null policy of every agent on some problems of every task type.

    Raises:
        ConfigError: The problems are of one task type.
    """
    agents = [agent.name for agent in load_team(config.team, config.prompts).agents]
    return tuple(
        Null(
            agent=agent,
            policy=policy,
            task_type=problem.task_type,
            case=null_case(problem, agent, policy, text),
        )
        for agent in agents
        for policy, text in null_actions().items()
        for problems in _by_type(config).values()
        for problem in problems
    )


def worked(config: TrainConfig) -> tuple[Worked, ...]:
    """Scripted actions, right and wrong ones, taking turns over task types."""
    team = load_team(config.team, config.prompts)
    visibility, duties = config.coach.visibility, duties_of(team)
    by_type = _by_type(config).values()
    problems = [one for row in zip_longest(*by_type) for one in row if one is not None]
    found = [
        Worked(
            case=case_of(
                episode,
                turn,
                visibility.get(turn.agent, LabelVisibility.NEVER),
                duties=duties,
            ),
            outcome=episode.outcome,
        )
        for problem in problems
        for success in (True, False)
        for episode in [_played(team, problem, success=success)]
        for turn in episode.turns
        if episode.outcome is not None
    ]
    return tuple(found[:MOST_WORKED])


def _by_type(config: TrainConfig) -> Mapping[str, Sequence[Problem]]:
    by_type = defaultdict[str, list[Problem]](list)
    for problem in problem_source(config.problems).train():
        if len(by_type[problem.task_type]) < PROBLEMS_PER_TYPE:
            by_type[problem.task_type].append(problem)
    if len(by_type) < 2:
        raise ConfigError("all problems are of one task type: there is nothing to prefer")
    return by_type


def _played(team: Team, problem: Problem, *, success: bool) -> Episode:
    """An episode of the scripted team."""
    specs = {agent.name: agent for agent in team.agents}
    episode = new_episode(ids.content_id("probe", success), "train", 1, problem, 0)
    for turn in _turns(team, specs, episode, success=success):
        episode = episode.with_turn(turn)
    outcome = Outcome(success=success, answer=_answer(problem, success=success), method="scripted")
    return replace(episode, outcome=outcome)


def _turns(
    team: Team, specs: Mapping[str, AgentSpec], episode: Episode, *, success: bool
) -> Iterator[Turn]:
    for index in range(sum(agent.max_turns for agent in specs.values())):
        observation = team.next_observation(episode)
        if observation is None:
            return
        turn = _turn(team, specs[observation.agent], observation, episode, index, success)
        episode = episode.with_turn(turn)
        yield turn


def _turn(
    team: Team,
    spec: AgentSpec,
    observation: Observation,
    episode: Episode,
    index: int,
    success: bool,
) -> Turn:
    answer = _answer(episode.problem, success=success)
    text = f"I compute it.\n```python\nprint({answer!r})\n```\nThe answer is \\boxed{{{answer}}}."
    code = team.code_in(spec.name, text)
    assumed = assumed_turn(
        observation, index, episode.run_id, max_tokens=1, runs_code=code is not None
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
