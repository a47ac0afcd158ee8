"""Calls tools on servers that speak the Model Context Protocol.

open ─▶ each server: connect, list its tools
call ─▶ text of the answer, bounded ─▶ ToolResult
└─ the server died: `ToolServerError` now, opened again by the next call
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable

import mcp_types
from jsonschema.exceptions import SchemaError
from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError

from mappa_core.core.errors import ToolServerError
from mappa_core.core.records.tools import Limits, Tool, ToolCall, ToolResult, ToolStatus
from mappa_core.core.streams import BothEnds
from mappa_core.rollout.tools.calls import dialect_of
from mappa_core.rollout.tools.connection import Connect, Connection, cause

TIER = "mcp:"
LOST = frozenset({CONNECTION_CLOSED, INVALID_REQUEST})
"""Codes that say that the connection is no good; nothing in a call's arguments causes them."""


class ToolServer:
    """One server, connected when it is needed."""

    def __init__(self, name: str, connect: Connect, start_seconds: float) -> None:
        self.name = name
        self._connect = connect
        self._start_seconds = start_seconds
        self._opening = asyncio.Lock()
        self._connection: Connection | None = None
        self._client: Client | None = None

    async def tools(self) -> tuple[Tool, ...]:
        """What it offers.

        Raises:
            ToolServerError: It cannot be opened, does not say, or says what could not be called.
        """
        client = await self._open()
        try:
            async with asyncio.timeout(self._start_seconds):
                found = [offered(self.name, tool) async for tool in _listed(client)]
        except TimeoutError:
            raise ToolServerError(
                f"tool server {self.name} did not list its tools within {self._start_seconds:g} s"
            ) from None
        except (MCPError, ValidationError) as error:
            why = cause(error)
            raise ToolServerError(f"tool server {self.name} lists no tools: {why}") from error
        for name, times in Counter(tool.name for tool in found).items():
            if times > 1:
                raise ToolServerError(f"tool server {self.name} has {times} tools called {name}")
        return tuple(found)

    async def call(self, call: ToolCall, limits: Limits) -> ToolResult:
        """Make `call`; see `Toolbox.call`."""
        client = await self._open()
        started = time.perf_counter()
        try:
            answer = await client.call_tool(
                call.tool.name, dict(call.arguments), read_timeout_seconds=limits.wall_seconds
            )
        except MCPError as error:
            if error.code in LOST:
                # Another call may have opened a new connection already.
                if client is self._client:
                    await self.close()
                raise ToolServerError(
                    f"tool server {self.name} died in a call of {call.tool.name}: {error}"
                ) from error
            late = error.code == REQUEST_TIMEOUT
            status = ToolStatus.TIMEOUT if late else ToolStatus.NONZERO
            said = f"no answer within {limits.wall_seconds:g} s" if late else str(error)
        except (ValidationError, RuntimeError) as error:
            # The latter is the SDK's word for an answer that is not what its tool promised.
            reason = str(error).partition("\n")[0]
            status, said = ToolStatus.NONZERO, f"the server's answer cannot be used: {reason}"
        else:
            status = ToolStatus.NONZERO if answer.is_error else ToolStatus.OK
            said = _text(answer)
        return _result(call, status, said, time.perf_counter() - started, limits)

    async def close(self) -> None:
        """Leave it; safe to call twice."""
        connection, self._connection, self._client = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _open(self) -> Client:
        async with self._opening:
            if self._connection is not None and self._connection.ended:
                await self.close()
            if self._client is None:
                self._connection = Connection(self.name, self._connect)
                try:
                    self._client = await self._connection.open(self._start_seconds)
                except BaseException:
                    # Cancelled too: the next opening would forget this one's server.
                    await self.close()
                    raise
            return self._client


class McpToolbox:
    """A `Toolbox` of several servers."""

    def __init__(self, servers: Iterable[ToolServer]) -> None:
        self._servers = {server.name: server for server in servers}
        self.tools: tuple[Tool, ...] = ()
        """All that the servers offered when they were opened."""

    async def open(self) -> None:
        """Start all servers.

        Raises:
            ToolServerError: One of them cannot be opened.
        """
        # All are waited for, so that none is still being opened when the others are closed.
        found = await asyncio.gather(
            *(server.tools() for server in self._servers.values()), return_exceptions=True
        )
        tools = list[Tool]()
        for each in found:
            if isinstance(each, BaseException):
                raise each
            tools += each
        self.tools = tuple(tools)

    async def call(self, call: ToolCall, limits: Limits) -> ToolResult:
        """Make `call` on its server; see `Toolbox.call`."""
        return await self._servers[call.tool.server].call(call, limits)

    async def close(self) -> None:
        """Leave all of them; safe to call twice."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


async def _listed(client: Client) -> AsyncGenerator[mcp_types.Tool]:
    """The server's tools, page by page."""
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor
        if not cursor:
            return


def offered(server: str, tool: mcp_types.Tool) -> Tool:
    """A tool as its server describes it.

    Raises:
        ToolServerError: Its schema is none, so that no call could be held to it.
    """
    schema = tool.input_schema
    dialect = dialect_of(schema)
    try:
        dialect.check_schema(schema)
    except SchemaError as error:
        raise ToolServerError(
            f"tool server {server} describes {tool.name} by what is no JSON Schema: {error.message}"
        ) from error
    words = tool.description or tool.title or ""
    return Tool(server=server, name=tool.name, description=words, schema=schema)


def _result(
    call: ToolCall, status: ToolStatus, said: str, seconds: float, limits: Limits
) -> ToolResult:
    out, err = BothEnds(limits.output_bytes), BothEnds(limits.output_bytes)
    (out if status is ToolStatus.OK else err).feed(said.encode("utf-8", "backslashreplace"))
    exit_codes = {ToolStatus.OK: 0, ToolStatus.NONZERO: 1}
    return ToolResult(
        code=call.text,
        status=status,
        exit_code=exit_codes.get(status),
        stdout=out.text(),
        stderr=err.text(),
        cpu_seconds=None,
        peak_memory_bytes=None,
        stdout_omitted_bytes=out.omitted_bytes,
        stderr_omitted_bytes=err.omitted_bytes,
        seconds=seconds,
        tier=f"{TIER}{call.tool.server}",
        read=(),
    )


def _text(answer: CallToolResult) -> str:
    if not answer.content and answer.structured_content is not None:
        return json.dumps(answer.structured_content, ensure_ascii=False)
    return "\n".join(_block(block) for block in answer.content)


def _block(block: ContentBlock) -> str:
    """A part of an answer as text; what agents cannot read is named."""
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        return block.resource.text
    return f"[{block.type}, left out]"
