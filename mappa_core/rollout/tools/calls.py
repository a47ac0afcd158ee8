r"""Calls of tools as agents write them, held to each tool's JSON Schema.

    ```tool                                                 the last complete block, as of programs
    {"name": "units.convert", "arguments": {"value": 3}}    ToolCall, or RefusedCall and why
    ```

A fence is the same few tokens in every vocabulary. The tags that some models were taught instead
(`<tool_call>`) are control tokens of others, and no content ever becomes one of those here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_core import PydanticCustomError

from mappa_core.core.records.tools import Json, RefusedCall, Tool, ToolCall

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


def read_call(text: str, tools: Sequence[Tool]) -> ToolCall | RefusedCall:
    """What a block asks for; whatever is wrong with it is an answer to the agent, no error."""
    try:
        written = _WrittenCall.model_validate_json(text.encode("utf-8", "replace"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return RefusedCall(text=text, reason=f"{where}: {first['msg']}".removeprefix(": "))
    by_name: Mapping[str, Tool] = {tool.full_name: tool for tool in tools}
    tool = by_name.get(written.name)
    if tool is None:
        there = ", ".join(by_name) or "none"
        reason = f"no tool is called {written.name!r}; there are: {there}"
        return RefusedCall(text=text, reason=reason)
    if (wrong := _wrong_arguments(tool, written.arguments)) is not None:
        return RefusedCall(text=text, reason=wrong)
    return ToolCall(text=text, tool=tool, arguments=written.arguments)


def dialect_of(schema: Mapping[str, Json]) -> "type[Validator]":
    """The JSON Schema that a tool's schema says it is written in; the newest where it says none."""
    # A quarter of a second to import, and most teams have no such tools.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    named = isinstance(schema.get("$schema"), str)
    return (
        validator_for(dict(schema), default=Draft202012Validator) if named else Draft202012Validator
    )


def _finite(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The arguments as they are: what JSON cannot say, a server would be sent as null."""
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        raise PydanticCustomError("finite", "numbers have to be finite") from None
    return arguments


class _WrittenCall(BaseModel):
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
