"""Tools beyond Python: which servers there are, and which agent may call them."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from mappa_core.core.section import Section

ToolName = Annotated[str, Field(pattern=r"^(python|mcp:[a-z][a-z0-9-]*)$")]
ServerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ToolServerConfig(Section):
    """One server that speaks the Model Context Protocol; secrets stay in the environment."""

    command: tuple[str, ...] = Field(
        default=(), description="Program and arguments of a server that speaks on its streams."
    )
    environment: tuple[Variable, ...] = Field(
        default=(), description="Environment variables that the program is given, by name."
    )
    url: str | None = Field(
        default=None,
        pattern=r"^https?://[^@]+$",
        description="Address of a server that speaks streamable HTTP.",
    )
    token: Variable | None = Field(
        default=None, description="Environment variable with the bearer token for the address."
    )
    start_seconds: float = Field(
        default=30, gt=0, description="How long it may take until it has listed its tools."
    )

    @model_validator(mode="after")
    def _is_one_kind(self) -> "ToolServerConfig":
        if bool(self.command) == (self.url is not None):
            raise ValueError("set either command or url")
        if self.token and not self.url:
            raise ValueError("token is for a url; a command is given variables by environment")
        if self.environment and not self.command:
            raise ValueError("environment is for a command; a url is given a token")
        return self


class ToolsConfig(Section):
    """What agents may use; a call is bounded by `sandbox.wall_seconds` and `sandbox.output_kib`."""

    agents: Mapping[str, tuple[ToolName, ...]] = Field(
        default={},
        description="An agent's tools in place of its team's own: python, mcp:<server>.",
    )
    servers: Mapping[ServerName, ToolServerConfig] = Field(
        default={},
        description="Servers by name, spoken to by the Model Context Protocol (docs/tools.md).",
    )
