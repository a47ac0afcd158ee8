"""Tools beyond Python, as configured."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from pydantic import SecretStr

from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams.base import AgentSpec, Team
from mappa_core.rollout.tools.config import ToolsConfig, ToolServerConfig
from mappa_core.rollout.tools.team import agents_with_tools, team_with_tools

if TYPE_CHECKING:
    from mappa_core.rollout.tools.connection import Connect
    from mappa_core.rollout.tools.toolbox import McpToolbox


def check_tools(team: Team, config: ToolsConfig) -> tuple[AgentSpec, ...]:
    """Refuse tools that could not be used; returns the team's agents with theirs.

    Raises:
        ConfigError: As `agents_with_tools`; a program or an environment variable is missing.
    """
    agents = agents_with_tools(team, config)
    for name, server in _used(agents, config).items():
        _secrets(name, server)
        if server.command and shutil.which(server.command[0]) is None:
            raise ConfigError(
                f"tools.servers.{name}.command: there is no program {server.command[0]}: install "
                "it, or name it by its path"
            )
    return agents


async def open_tools(
    team: Team, config: ToolsConfig, settings: Settings, stack: AsyncExitStack
) -> "tuple[Team, McpToolbox | None]":
    """The team with its tools, and the servers that some agent uses, closed with `stack`.

    Raises:
        ConfigError: As `check_tools`.
        ToolServerError: A server does not start.
    """
    agents = check_tools(team, config)
    used = _used(agents, config)
    if not used:
        return team_with_tools(team, agents, ()), None
    # The SDK takes a second to import, and most runs do without.
    from mappa_core.rollout.tools.toolbox import McpToolbox, ToolServer

    toolbox = McpToolbox(
        ToolServer(name, _connection(name, server, settings), server.start_seconds)
        for name, server in used.items()
    )
    stack.push_async_callback(toolbox.close)
    await toolbox.open()
    return team_with_tools(team, agents, toolbox.tools), toolbox


def _used(agents: Sequence[AgentSpec], config: ToolsConfig) -> Mapping[str, ToolServerConfig]:
    return {name: config.servers[name] for agent in agents for name in agent.servers}


def _connection(name: str, server: ToolServerConfig, settings: Settings) -> "Connect":
    from mappa_core.rollout.tools.connection import command_line, web_address

    secrets = _secrets(name, server)
    if server.url is not None:
        return web_address(server.url, secrets.get(server.token or ""))
    return command_line(server.command, secrets, settings.logs / f"mcp-{name}.log")


def _secrets(name: str, server: ToolServerConfig) -> Mapping[str, SecretStr]:
    """What the environment holds under the names that a server's configuration gives."""
    variables = (*server.environment, *((server.token,) if server.token else ()))
    missing = [variable for variable in variables if variable not in os.environ]
    if missing:
        raise ConfigError(f"tool server {name} needs {', '.join(missing)} in the environment")
    return {variable: SecretStr(os.environ[variable]) for variable in variables}
