"""Teams: which agent acts next, what it sees, which code it asked to run. Pure decisions."""

from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from mappa_core.core.errors import ConfigError
from mappa_core.core.text import common_name
from mappa_core.rollout.config import RolloutConfig
from mappa_core.rollout.teams.base import AgentSpec, Team
from mappa_core.rollout.teams.debate import Debate, debaters
from mappa_core.rollout.teams.dsbench import DsBench
from mappa_core.rollout.teams.mathchat import MathChat
from mappa_core.rollout.teams.mixture import Mixture
from mappa_core.rollout.teams.prompts import load_prompts
from mappa_core.rollout.teams.single import Single

TEAMS = MappingProxyType({team.name: team for team in (DsBench, MathChat, Single, Debate, Mixture)})
"""Every team by name; each is made with one of its prompt sets."""


def load_team(name: str, prompts: str, rollout: RolloutConfig | None = None) -> Team:
    """The team `name` with the prompt set `prompts`, and the turns and debaters of `rollout`.

    Raises:
        ConfigError: No such team or prompt set, a prompt file that breaks the format, or turns of
            an agent that has none to be set.
    """
    if name not in TEAMS:
        near = get_close_matches(name, TEAMS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(TEAMS)}"
        raise ConfigError(f"no team is called {name!r}: {hint}")
    team = TEAMS[name]
    agents = team.agents if rollout is None else _agents(name, team.agents, rollout)
    sees = {each.name: each.sees for each in agents}
    return team(prompts=load_prompts(name, prompts, sees), agents=agents)


def _agents(
    team: str, agents: tuple[AgentSpec, ...], rollout: RolloutConfig
) -> tuple[AgentSpec, ...]:
    if rollout.debaters is not None:
        if team != Debate.name:
            raise ConfigError(f"rollout.debaters is of team debate, and this is {team}: leave it")
        agents = debaters(rollout.debaters)
    again = {common_name(agent.name) for agent in agents if agent.max_turns > 1}
    for name in rollout.agent_turns:
        if name not in again:
            can = " or ".join(sorted(again)) or "no agent that may"
            raise ConfigError(f"rollout.agent_turns.{name}: of team {team} {can} act again")
    limits = rollout.agent_turns
    return tuple(
        replace(agent, max_turns=limits.get(common_name(agent.name), agent.max_turns))
        for agent in agents
    )
