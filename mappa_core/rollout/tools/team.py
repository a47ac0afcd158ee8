"""Teams with tools beyond Python: which agent has which, how it is told, what its call means."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, Message, Observation, StopReason
from mappa_core.core.records.tools import Json, Tool, ToolRequest
from mappa_core.core.text import CALL, PROGRAM, last_block, last_boxed
from mappa_core.rollout.teams.base import AgentSpec, Team
from mappa_core.rollout.teams.prompts import TOOLS, PromptSet
from mappa_core.rollout.tools.calls import read_call
from mappa_core.rollout.tools.config import ToolsConfig

_PLACEHOLDER = f"{{{{{TOOLS}}}}}"


@dataclass(frozen=True, kw_only=True)
class ToolTeam(Team):
    """A team whose agents may call the tools of servers."""

    team: Team
    """The same team without them."""
    tools: tuple[Tool, ...]
    """What the agents' servers offer."""

    def next_observation(self, episode: Episode) -> Observation | None:
        """What the next agent sees, its tools listed where its prompt has them."""
        observation = self.team.next_observation(episode)
        if observation is None:
            return None
        listing = describe_tools(self._tools_of(observation.agent))
        messages = tuple(_with_listing(message, listing) for message in observation.messages)
        return replace(observation, messages=messages)

    def code_in(self, agent: str, text: str) -> ToolRequest | None:
        """A call where that is the last block and no answer is boxed yet, else the program."""
        spec = next((each for each in self.agents if each.name == agent), None)
        if spec is None:
            return None
        languages = CALL | PROGRAM if spec.runs_code else CALL
        block = last_block(text, languages) if spec.servers and not last_boxed(text) else None
        if block is not None and block.language in CALL:
            return read_call(block.content, self._tools_of(agent))
        return self.team.code_in(agent, text) if spec.runs_code else None

    def final_answer(self, episode: Episode) -> str | None:
        """The answer that the team without tools would read in the episode."""
        return self.team.final_answer(episode)

    def stop_reason(self, episode: Episode) -> StopReason:
        """The reason that the team without tools would give."""
        return self.team.stop_reason(episode)

    def _tools_of(self, agent: str) -> tuple[Tool, ...]:
        servers = next(each.servers for each in self.agents if each.name == agent)
        return tuple(tool for tool in self.tools if tool.server in servers)


def agents_with_tools(team: Team, config: ToolsConfig) -> tuple[AgentSpec, ...]:
    """The team's agents, with the tools that the configuration gives them in place of their own.

    Raises:
        ConfigError: An agent or a server that there is not, tools for an agent that could not use
            them, or a prompt that does not list them.
    """
    known = {agent.name: agent for agent in team.agents}
    for name in config.agents:
        if name not in known:
            near = get_close_matches(name, known, n=1) or known
            raise ConfigError(f"tools.agents.{name}: team {team.name} has {' or '.join(near)}")
    agents = tuple(
        replace(agent, tools=config.agents.get(name, agent.tools)) for name, agent in known.items()
    )
    for agent in agents:
        for complaint in _complaints(agent, known[agent.name], team.prompts, config):
            raise ConfigError(complaint)
    return agents


def team_with_tools(team: Team, agents: tuple[AgentSpec, ...], tools: Sequence[Tool]) -> Team:
    """The team with these agents and all that their servers offer."""
    if agents == team.agents and not any(agent.servers for agent in agents):
        return team
    return ToolTeam(
        prompts=team.prompts,
        name=team.name,
        agents=agents,
        rules=team.rules,
        rubrics=team.rubrics,
        team=team,
        tools=tuple(tools),
    )


def describe_tools(tools: Sequence[Tool]) -> str:
    """What an agent is told of its tools: name, what it does, JSON Schema of its arguments."""
    return "\n".join(
        f"- {tool.full_name}: {' '.join(tool.description.split())}\n"
        f"  arguments: {json.dumps(_untitled(dict(tool.schema)), ensure_ascii=False)}"
        for tool in tools
    )


def _untitled(schema: Json) -> Json:
    """A schema without titles, which repeat the names; a property called `title` has a schema."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _untitled(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def _complaints(
    agent: AgentSpec, own: AgentSpec, prompts: PromptSet, config: ToolsConfig
) -> Iterator[str]:
    for server in agent.servers:
        if server not in config.servers:
            yield (
                f"agent {agent.name} has mcp:{server}, which is not configured: set "
                f"tools.servers.{server}.command or tools.servers.{server}.url"
            )
    if agent.tools and not own.tools:
        yield f"tools.agents.{agent.name}: it has no turn in which it could read what a tool says"
    opening = prompts.prompts[agent.name].opening
    lists = any(_PLACEHOLDER in message.content for message in opening)
    if agent.servers and not lists:
        yield (
            f"prompts {prompts.name} do not tell {agent.name} of tools: choose a set whose system "
            f"message has {_PLACEHOLDER}"
        )
    if lists and not agent.servers:
        yield (
            f"prompts {prompts.name} list tools of servers, and {agent.name} has none: set "
            f"tools.agents.{agent.name}, or choose other prompts"
        )


def _with_listing(message: Message, listing: str) -> Message:
    if message.role != "system":
        return message
    return replace(message, content=message.content.replace(_PLACEHOLDER, listing))
