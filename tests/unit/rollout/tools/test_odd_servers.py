"""A server that breaks its word costs a call or a start, with a name, and never the run."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp.client import Transport

from mappa_core.core.errors import ToolServerError
from mappa_core.core.records.tools import (
    Limits,
    RefusedCall,
    Tool,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from mappa_core.rollout.tools.calls import read_call
from mappa_core.rollout.tools.connection import Connect, command_line
from mappa_core.rollout.tools.toolbox import ToolServer
from tests.fakes import odd_server

LIMITS = Limits(wall_seconds=10)


def connection(way: str, folder: Path) -> Connect:
    return command_line((sys.executable, odd_server.__file__, way), {}, folder / "log")


def asked(connect: Connect, *, start_seconds: float = 10) -> tuple[tuple[Tool, ...], ToolResult]:
    """What the server offers, and what comes of a call of the first."""

    async def scenario() -> tuple[tuple[Tool, ...], ToolResult]:
        server = ToolServer("odd", connect, start_seconds)
        try:
            tools = await server.tools()
            call = ToolCall(text="call", tool=tools[0], arguments={})
            return tools, await server.call(call, LIMITS)
        finally:
            await server.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("promises", "Tool odd has an output schema but did not return structured content"),
        ("babbles", "1 validation error for CallToolResult"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_failed_call(
    tmp_path: Path, way: str, said: str
) -> None:
    _, result = asked(connection(way, tmp_path))
    assert (result.status, result.stdout) == (ToolStatus.NONZERO, "")
    assert result.stderr == f"the server's answer cannot be used: {said}"


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("is fine", "café"),
        ("writes latin", "caf\N{REPLACEMENT CHARACTER}"),
        ("keeps to itself", '{"sum": 41}'),
    ],
)
def test_what_can_be_read_of_an_answer_is(tmp_path: Path, way: str, said: str) -> None:
    _, result = asked(connection(way, tmp_path))
    assert (result.status, result.stdout) == (ToolStatus.OK, said)


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("twins", "has 2 tools called odd"),
        ("is mute", "did not list its tools within 0.5 s"),
        ("never ends", "did not list its tools within 0.5 s"),
        ("is from elsewhere", "cannot be opened: Unsupported protocol version"),
        ("is confused", "cannot be opened: 1 validation error for InitializeResult"),
    ],
)
def test_a_server_nobody_could_use_is_named_in_one_line(
    tmp_path: Path, way: str, says: str
) -> None:
    with pytest.raises(ToolServerError, match=rf"^tool server odd {says}") as caught:
        asked(connection(way, tmp_path), start_seconds=0.5)
    assert "\n" not in str(caught.value)


def test_a_schema_is_read_in_the_dialect_that_it_names(tmp_path: Path) -> None:
    (tool,), _ = asked(connection("is old", tmp_path))
    refused = read_call('{"name": "odd.odd", "arguments": {"value": 0}}', (tool,))
    assert isinstance(refused, RefusedCall)
    assert refused.reason == "arguments.value: 0 is less than or equal to the minimum of 0"
    assert isinstance(
        read_call('{"name": "odd.odd", "arguments": {"value": 1}}', (tool,)), ToolCall
    )


def test_a_connection_that_broke_between_calls_is_opened_again(tmp_path: Path) -> None:
    breaks, left = asyncio.Event(), asyncio.Event()
    whole = connection("is fine", tmp_path)

    async def break_off() -> None:
        await breaks.wait()
        raise OSError("the line is dead")

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Transport]:
        try:
            async with anyio.create_task_group() as tasks, whole() as transport:
                if not breaks.is_set():
                    tasks.start_soon(break_off)
                yield transport
        finally:
            left.set()

    async def scenario() -> ToolResult:
        server = ToolServer("odd", connect, 10)
        try:
            call = ToolCall(text="call", tool=(await server.tools())[0], arguments={})
            breaks.set()
            await left.wait()
            await asyncio.sleep(0)
            return await server.call(call, LIMITS)
        finally:
            await server.close()

    assert asyncio.run(scenario()).stdout == "café"


def test_an_opening_that_was_cancelled_leaves_no_server_behind(tmp_path: Path) -> None:
    opening, running = asyncio.Event(), 0
    whole = connection("is fine", tmp_path)

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Transport]:
        nonlocal running
        running += 1
        try:
            if not opening.is_set():
                opening.set()
                await asyncio.Event().wait()
            async with whole() as transport:
                yield transport
        finally:
            running -= 1

    async def scenario() -> None:
        server = ToolServer("odd", connect, 10)
        cut_off = asyncio.create_task(server.tools())
        await opening.wait()
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        assert running == 0
        await server.tools()
        assert running == 1
        await server.close()
        assert running == 0

    asyncio.run(scenario())
