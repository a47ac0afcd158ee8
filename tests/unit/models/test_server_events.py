"""A slow generation is no dead server; one that is silent is."""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from mappa_core.core.errors import EngineError
from mappa_core.models.serving import client as serving
from mappa_core.models.serving.client import ServerDied
from mappa_core.models.serving.fork_server import ForkServer
from mappa_core.models.serving.server import Server

SILENT = 0.4
"""Seconds, in place of the real ones."""


class Listening(Server):
    """Has a server in this process instead of one that is forked."""

    def __init__(self, answer: Callable[[], AsyncGenerator[bytes]], directory: Path) -> None:
        super().__init__(ForkServer(Path("none"), {}, directory / "log"), (), directory / "log")
        self._answer = answer

    async def healthy(self) -> bool:
        return True

    @asynccontextmanager
    async def listening(self, directory: Path) -> AsyncGenerator[None]:
        self._open(directory)
        async with await asyncio.start_unix_server(self._reply, directory / "socket"):
            try:
                yield
            finally:
                await self.stop()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        try:
            async for text in self._answer():
                writer.write(text)
                await writer.drain()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def events(answer: Callable[[], AsyncGenerator[bytes]], directory: Path) -> list[dict[str, object]]:
    async def scenario() -> list[dict[str, object]]:
        server = Listening(answer, directory)
        async with server.listening(directory):
            return await server.events("/v1/completions", {"stream": True})

    return asyncio.run(scenario())


def data(event: object) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


@pytest.fixture
def short_folder() -> Generator[Path]:
    """A path that a Unix socket may have."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REPLY_SECONDS", SILENT)


def test_an_answer_may_take_long_as_long_as_it_comes(short_folder: Path) -> None:
    async def slow() -> AsyncGenerator[bytes]:
        for number in range(4):
            await asyncio.sleep(SILENT / 2)
            yield data({"number": number})
        yield b"data: [DONE]\n\n"

    assert events(slow, short_folder) == [{"number": number} for number in range(4)]


def test_a_silent_server_is_dead(short_folder: Path) -> None:
    async def silent() -> AsyncGenerator[bytes]:
        yield data({"number": 0})
        await asyncio.sleep(60)

    with pytest.raises(ServerDied, match="no token for 0 s"):
        events(silent, short_folder)


def test_an_answer_that_breaks_off_is_a_death(short_folder: Path) -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield data({"number": 0})

    with pytest.raises(ServerDied, match="breaks off"):
        events(broken, short_folder)


def test_a_refusal_in_the_middle_is_told(short_folder: Path) -> None:
    async def refused() -> AsyncGenerator[bytes]:
        yield data({"error": {"message": "no such adapter"}})
        yield b"data: [DONE]\n\n"

    with pytest.raises(EngineError, match=r"vLLM refused /v1/completions .*no such adapter"):
        events(refused, short_folder)
