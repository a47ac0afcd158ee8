"""One connection to a server of tools, held by a task of its own.

A connection of the SDK has to be entered and left by one task, while calls come from many.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from pydantic import SecretStr

from mappa_core.core.errors import ToolServerError

CLOSE_SECONDS = 10.0
"""Time for a server to end by itself; a program is ended in half of it."""
CONNECT_SECONDS = 30.0

Connect = Callable[[], AbstractAsyncContextManager[Transport]]
"""Begins a connection anew."""


class Connection:
    """Holds a connection from `open` until `close`."""

    def __init__(self, server: str, connect: Connect) -> None:
        self._server = server
        self._connect = connect
        self._leave = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether there is no connection any more."""
        return self._task is not None and self._task.done()

    async def open(self, seconds: float) -> Client:
        """Connect.

        Raises:
            ToolServerError: It does not answer, not as a server of tools, or not in `seconds`.
        """
        self._task = asyncio.create_task(self._hold(), name=f"mcp {self._server}")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._client)
        except TimeoutError:
            raise ToolServerError(
                f"tool server {self._server} did not answer within {seconds:g} s"
            ) from None

    async def close(self) -> None:
        """Hang up, and end a server that was started for it; safe to call twice."""
        self._leave.set()
        if self._task is not None:
            seconds = CLOSE_SECONDS if self._client.done() else 0
            _, late = await asyncio.wait([self._task], timeout=seconds)
            if late:
                self._task.cancel()
                await asyncio.wait(late)

    async def _hold(self) -> None:
        try:
            async with self._connect() as transport, Client(transport) as client:
                self._client.set_result(client)
                await self._leave.wait()
        except (OSError, MCPError, httpx2.HTTPError, ExceptionGroup) as error:
            if not self._client.done():
                why = cause(error)
                self._client.set_exception(
                    ToolServerError(f"tool server {self._server} cannot be opened: {why}")
                )


def command_line(
    command: Sequence[str], environment: Mapping[str, SecretStr], log: Path
) -> Connect:
    """A program that speaks on its streams; its stderr goes to `log`.

    It is given `environment` beside PATH, HOME and the like; nothing else is inherited.
    """
    parameters = StdioServerParameters(
        command=command[0],
        args=[*command[1:]],
        env={name: value.get_secret_value() for name, value in environment.items()},
        # A byte that is no UTF-8 spoils a letter, not the connection.
        encoding_error_handler="replace",
    )

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Transport]:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as errors:
            yield stdio_client(parameters, errors)

    return connect


def web_address(url: str, token: SecretStr | None) -> Connect:
    """A server that speaks streamable HTTP."""
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    # Nothing is read while a tool works; the caller says how long that may take.
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Transport]:
        async with httpx2.AsyncClient(headers=headers, timeout=timeout) as client:
            yield streamable_http_client(url, http_client=client)

    return connect


def cause(error: BaseException) -> str:
    """The first cause, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__
