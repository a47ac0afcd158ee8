"""What `ports.Toolbox` promises, over the streams of a program and over HTTP."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mcp_types
import pytest
from pydantic import SecretStr

from mappa_core.core.errors import ToolServerError
from mappa_core.core.records.tools import Json, Limits, ToolCall, ToolResult, ToolStatus
from mappa_core.rollout.tools.connection import CLOSE_SECONDS, Connect, command_line, web_address
from mappa_core.rollout.tools.toolbox import McpToolbox, ToolServer, offered

COMMAND = (sys.executable, "-m", "tests.fakes.units_server")
LIMITS = Limits(wall_seconds=10, output_bytes=100)


@dataclass(frozen=True)
class Opened:
    """A toolbox in a loop of its own."""

    toolbox: McpToolbox
    runner: asyncio.Runner

    def call(self, name: str, limits: Limits = LIMITS, /, **arguments: Json) -> ToolResult:
        tool = next(tool for tool in self.toolbox.tools if tool.name == name)
        call = ToolCall(text=f"call {name}", tool=tool, arguments=arguments)
        return self.runner.run(self.toolbox.call(call, limits))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL) as process:
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


@pytest.fixture(scope="module", params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def connect(
    request: pytest.FixtureRequest, transport: str, tmp_path_factory: pytest.TempPathFactory
) -> Connect:
    if transport == "http":
        return web_address(request.getfixturevalue("address"), None)
    given = {"UNITS_KEY": SecretStr("for units")}
    return command_line(COMMAND, given, tmp_path_factory.mktemp("logs") / "mcp-units.log")


@pytest.fixture(scope="module")
def opened(connect: Connect) -> Iterator[Opened]:
    with asyncio.Runner() as runner:
        toolbox = runner.run(patiently_opened(connect))
        yield Opened(toolbox, runner)
        runner.run(toolbox.close())
        runner.run(toolbox.close())


async def patiently_opened(connect: Connect) -> McpToolbox:
    """Opened as soon as the server of the test listens."""
    deadline = time.monotonic() + 60
    while True:
        toolbox = McpToolbox([ToolServer("units", connect, 30)])
        try:
            await toolbox.open()
        except ToolServerError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        else:
            return toolbox


def test_tools_are_listed_with_what_they_take(opened: Opened) -> None:
    convert = next(tool for tool in opened.toolbox.tools if tool.full_name == "units.convert")
    assert convert.description == "Convert a length between mm, cm, m and km."
    assert convert.schema["required"] == ["value", "unit", "to"]


@pytest.mark.parametrize(
    "schema", [{"type": "number or so"}, {"properties": 7}, {"patternProperties": {"(": {}}}]
)
def test_a_tool_whose_schema_is_none_is_refused_by_name(schema: dict[str, Json]) -> None:
    with pytest.raises(ToolServerError, match=r"^tool server units describes odd by what is no "):
        offered("units", mcp_types.Tool(name="odd", input_schema=schema))


def test_an_answer_is_a_result_that_names_its_server(opened: Opened) -> None:
    result = opened.call("convert", value=3, unit="km", to="m")
    assert (result.status, result.exit_code, result.stdout) == (ToolStatus.OK, 0, "3000")
    assert (result.code, result.tier, result.stderr) == ("call convert", "mcp:units", "")
    assert 0 < result.seconds < 10


def test_calls_at_once_do_not_wait_for_each_other(opened: Opened) -> None:
    nap = next(tool for tool in opened.toolbox.tools if tool.name == "nap")
    call = ToolCall(text="", tool=nap, arguments={"seconds": 0.5})

    async def naps() -> list[ToolResult]:
        return await asyncio.gather(*(opened.toolbox.call(call, LIMITS) for _ in range(10)))

    started = time.perf_counter()
    assert {result.stdout for result in opened.runner.run(naps())} == {"good morning"}
    assert time.perf_counter() - started < 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"value": 3, "unit": "mile", "to": "m"}, "there is no unit mile"),
        ({"value": "three", "unit": "km", "to": "m"}, "valid number"),
        ({}, "Field required"),
    ],
)
def test_a_call_that_fails_is_a_result_that_says_so(
    opened: Opened, arguments: dict[str, Json], said: str
) -> None:
    result = opened.call("convert", Limits(output_bytes=10_000), **arguments)
    assert (result.status, result.exit_code, result.stdout) == (ToolStatus.NONZERO, 1, "")
    assert said in result.stderr


def test_a_call_is_given_up_in_time_and_the_server_goes_on(opened: Opened) -> None:
    result = opened.call("nap", Limits(wall_seconds=0.3), seconds=20)
    assert (result.status, result.exit_code) == (ToolStatus.TIMEOUT, None)
    assert result.stderr == "no answer within 0.3 s"
    assert result.seconds < 3
    assert opened.call("convert", value=1, unit="m", to="cm").stdout == "100"


def test_a_long_answer_keeps_both_ends(opened: Opened) -> None:
    result = opened.call("shout", characters=100_000)
    assert result.stdout_omitted_bytes == 100_001 - LIMITS.output_bytes
    assert result.stdout.startswith("aaa")
    assert result.stdout.endswith("az")


def test_what_is_no_text_is_named(opened: Opened) -> None:
    assert opened.call("picture").stdout == "[image, left out]"


def test_a_program_is_given_the_named_variables_alone(opened: Opened, transport: str) -> None:
    if transport == "http":
        pytest.skip("a server that was there before has an environment of its own")
    assert opened.call("variable", name="UNITS_KEY").stdout == "for units"
    assert opened.call("variable", name="PYTEST_VERSION").stdout == "nothing"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("/nowhere/server",), "cannot be opened: "),
        ((sys.executable, "-c", "print('hello')"), "cannot be opened: "),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "did not answer within 1 s"),
    ],
)
def test_a_server_that_does_not_start_is_named_in_one_line(
    tmp_path: Path, command: tuple[str, ...], says: str
) -> None:
    toolbox = McpToolbox([ToolServer("units", command_line(command, {}, tmp_path / "log"), 1)])
    with pytest.raises(ToolServerError, match=rf"^tool server units {says}") as caught:
        asyncio.run(toolbox.open())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_web_server_that_goes_away_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    connect = web_address(f"http://127.0.0.1:{port}/mcp", SecretStr("secret-token"))
    with asyncio.Runner() as runner:
        with subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL) as process:
            opened = Opened(runner.run(patiently_opened(connect)), runner)
            process.kill()
        with pytest.raises(ToolServerError, match=r"^tool server units ") as caught:
            opened.call("convert", value=1, unit="m", to="cm")
        assert "secret-token" not in str(caught.value)
        runner.run(opened.toolbox.close())


@pytest.mark.slow
def test_a_web_server_may_take_its_time(address: str) -> None:
    connect = web_address(address, None)
    with asyncio.Runner() as runner:
        opened = Opened(runner.run(patiently_opened(connect)), runner)
        # Longer than an HTTP client waits for the next byte by default.
        assert opened.call("nap", seconds=6).stdout == "good morning"
        runner.run(opened.toolbox.close())


@pytest.mark.slow
def test_a_web_server_that_hangs_is_left_without_its_leave() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    connect = web_address(f"http://127.0.0.1:{port}/mcp", None)
    with (
        asyncio.Runner() as runner,
        subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL) as process,
    ):
        opened = Opened(runner.run(patiently_opened(connect)), runner)
        process.send_signal(signal.SIGSTOP)
        try:
            late = opened.call("nap", Limits(wall_seconds=0.5), seconds=0)
            assert late.status is ToolStatus.TIMEOUT
            started = time.perf_counter()
            runner.run(opened.toolbox.close())
            assert time.perf_counter() - started < CLOSE_SECONDS + 5
        finally:
            process.kill()
