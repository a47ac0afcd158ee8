r"""Tools beyond Python: which agent has which, how it is told of them, what its call means.

    ```tool                                                 the last complete block, as of programs
    {"name": "units.convert", "arguments": {"value": 3}}    ToolCall, or RefusedCall and why
    ```

A fence is the same few tokens in every vocabulary. The tags that some models were taught instead
(`<tool_call>`) are control tokens of others, and no content ever becomes one of those here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_core import PydanticCustomError

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, Message, Observation, StopReason
from mappa_core.core.records.tools import Json, RefusedCall, Tool, ToolCall, ToolRequest
from mappa_core.core.text import CALL, PROGRAM, last_block, last_boxed
from mappa_core.rollout.teams.base import AgentSpec, Team
from mappa_core.rollout.teams.prompts import TOOLS, PromptSet
from mappa_core.rollout.tools.config import ToolsConfig

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_PLACEHOLDER = f"{{{{{TOOLS}}}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipped:
    """A team whose agents may call the tools of servers."""

    team: Team
    agents: tuple[AgentSpec, ...]
    tools: tuple[Tool, ...]
    """What the agents' servers offer."""

    @property
    def name(self) -> str:
        """The team's."""
        return self.team.name

    @property
    def prompts(self) -> PromptSet:
        """The team's."""
        return self.team.prompts

    @property
    def rules(self) -> str | None:
        """The team's."""
        return self.team.rules

    @property
    def rubrics(self) -> str:
        """The team's."""
        return self.team.rubrics

    def next_observation(self, episode: Episode) -> Observation | None:
        """What the next agent sees, its tools listed where its prompt has them."""
        observation = self.team.next_observation(episode)
        if observation is None:
            return None
        listing = listed(self._tools_of(observation.agent))
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
        """The team's."""
        return self.team.final_answer(episode)

    def stop_reason(self, episode: Episode) -> StopReason:
        """The team's."""
        return self.team.stop_reason(episode)

    def _tools_of(self, agent: str) -> tuple[Tool, ...]:
        servers = next(each.servers for each in self.agents if each.name == agent)
        return tuple(tool for tool in self.tools if tool.server in servers)


def assigned(team: Team, config: ToolsConfig) -> tuple[AgentSpec, ...]:
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


def equipped(team: Team, agents: tuple[AgentSpec, ...], tools: Sequence[Tool]) -> Team:
    """The team with these agents and all that their servers offer."""
    if agents == team.agents and not any(agent.servers for agent in agents):
        return team
    return Equipped(team=team, agents=agents, tools=tuple(tools))


def listed(tools: Sequence[Tool]) -> str:
    """What an agent is told of its tools: name, what it does, JSON Schema of its arguments."""
    return "\n".join(
        f"- {tool.full_name}: {' '.join(tool.description.split())}\n"
        f"  arguments: {json.dumps(_untitled(dict(tool.schema)), ensure_ascii=False)}"
        for tool in tools
    )


def read_call(text: str, tools: Sequence[Tool]) -> ToolCall | RefusedCall:
    """What a block asks for; whatever is wrong with it is an answer to the agent, no error."""
    try:
        said = _Said.model_validate_json(text.encode("utf-8", "replace"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return RefusedCall(text=text, reason=f"{where}: {first['msg']}".removeprefix(": "))
    by_name: Mapping[str, Tool] = {tool.full_name: tool for tool in tools}
    if said.name not in by_name:
        there = ", ".join(by_name) or "none"
        return RefusedCall(text=text, reason=f"no tool is called {said.name!r}; there are: {there}")
    tool = by_name[said.name]
    wrong = _wrong_arguments(tool, said.arguments)
    if wrong is not None:
        return RefusedCall(text=text, reason=wrong)
    return ToolCall(text=text, tool=tool, arguments=said.arguments)


def dialect_of(schema: Mapping[str, Json]) -> "type[Validator]":
    """The JSON Schema that a tool's schema says it is written in; the newest where it says none."""
    # A quarter of a second to import, and most teams have no such tools.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    named = isinstance(schema.get("$schema"), str)
    return (
        validator_for(dict(schema), default=Draft202012Validator) if named else Draft202012Validator
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


def _finite(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The arguments as they are: what JSON cannot say, a server would be sent as null."""
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        raise PydanticCustomError("finite", "numbers have to be finite") from None
    return arguments


class _Said(BaseModel):
    """A call as it has to be written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    arguments: Annotated[dict[str, JsonValue], AfterValidator(_finite)] = {}


def _wrong_arguments(tool: Tool, arguments: Mapping[str, JsonValue]) -> str | None:
    from jsonschema.exceptions import best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # An empty registry: what a schema refers to elsewhere is not fetched.
    validator = dialect_of(tool.schema)(dict(tool.schema), registry=Registry())
    try:
        error = best_match(validator.iter_errors(dict(arguments)))
    except (Unresolvable, RecursionError):
        return None  # A schema that cannot be used here is the server's to judge by.
    if error is None:
        return None
    where = ".".join(["arguments", *(str(part) for part in error.absolute_path)])
    return f"{where}: {error.message}"


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
