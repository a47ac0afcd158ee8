"""One vLLM server process: start it, wait until it answers, know when it has died, stop it.

It listens on a Unix socket in a directory of this user alone: no port to collide on, and vLLM's
development endpoints, which change weights, are out of every other user's reach.
"""

import asyncio
import json
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import httpx

from mappa_core.core.errors import EngineError
from mappa_core.models.serving.fork_server import NOTHING, ForkServer

REPLY_SECONDS = 900.0
"""A reply that takes longer means a server that hangs; a generation may take any time, as long as
tokens come, of this request or another one."""

_SERVER_ERROR = 500
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.25


class ServerDied(Exception):
    """The server is gone; its request may be repeated after a restart."""


class Server:
    """A vLLM server of our own, and the only client of it."""

    def __init__(
        self,
        fork_server: ForkServer,
        arguments: Sequence[str],
        log: Path,
        *,
        variables: Mapping[str, str] = NOTHING,
    ) -> None:
        self._fork_server = fork_server
        self._arguments, self._variables = tuple(arguments), variables
        self._liveness: socket.socket | None = None
        self._directory: Path | None = None
        self._client: httpx.AsyncClient | None = None
        self._heard = 0.0
        self._under_way = 0
        self.log = log

    @property
    def address(self) -> Path:
        """The Unix socket it listens on.

        Raises:
            EngineError: It is not running.
        """
        if self._directory is None:
            raise EngineError("the vLLM server is not running: call start() first")
        return self._directory / "socket"

    async def start(self, seconds: float) -> None:
        """Start the process and wait until it answers.

        Raises:
            EngineError: It ended early or took longer than `seconds`; the message names the log.
        """
        self._open(Path(tempfile.mkdtemp(prefix="mappa-vllm-")))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        arguments = (*self._arguments, "--uds", str(self.address))
        self._liveness = self._fork_server.fork(arguments, self.log, self._variables)
        await self._until_healthy(self._liveness, seconds)

    def _open(self, directory: Path) -> None:
        """Be the client of the socket in `directory`."""
        self._directory = directory
        transport = httpx.AsyncHTTPTransport(
            uds=str(self.address),
            # A connection kept alive may be closed by the server just as it is used again, which
            # would look like a death; a new one costs nothing on this machine.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._client = httpx.AsyncClient(
            transport=transport, base_url="http://vllm", timeout=httpx.Timeout(REPLY_SECONDS)
        )

    async def _until_healthy(self, liveness: socket.socket, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not await self.healthy():
            if _has_ended(liveness):
                raise EngineError(
                    f"the vLLM server ended while starting: read {self.log}, or, where that is "
                    f"missing, {self._fork_server.log}"
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the vLLM server did not answer within {seconds:.0f} s: read {self.log}, "
                    "or raise its start_seconds"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def healthy(self) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            response = await self._open_client().get("/health", timeout=10)
        except httpx.TransportError:
            return False
        return response.is_success

    async def post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        """Send `body` as JSON.

        Raises:
            ServerDied: No answer will come.
            EngineError: The server lives and refuses.
        """
        try:
            response = await self._open_client().post(path, json=body)
        except httpx.TransportError as error:
            raise ServerDied(f"{type(error).__name__} at {path}") from error
        if response.is_error:
            await self._refused(path, response.status_code, response.text)
        return response

    async def events(self, path: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        """Send `body` as JSON, and take all events of the answer (`stream` is asked for in it).

        Raises:
            ServerDied: No answer will come: nothing did for `REPLY_SECONDS`, of any request.
            EngineError: The server lives and refuses.
        """
        if not self._under_way:
            self._heard = time.monotonic()
        self._under_way += 1
        taking = asyncio.ensure_future(self._taken(path, body))
        try:
            while not taking.done():
                left = self._heard + REPLY_SECONDS - time.monotonic()
                if left <= 0:
                    raise ServerDied(f"no token for {REPLY_SECONDS:.0f} s at {path}")
                await asyncio.wait((taking,), timeout=left)
            return taking.result()
        finally:
            self._under_way -= 1
            if taking.cancel():
                await asyncio.wait((taking,))

    async def _taken(self, path: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        ended = False
        try:
            client = self._open_client()
            async with client.stream("POST", path, json=body, timeout=None) as response:
                if response.is_error:
                    text = (await response.aread()).decode(errors="replace")
                    await self._refused(path, response.status_code, text)
                async for line in response.aiter_lines():
                    self._heard = time.monotonic()
                    ended = ended or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        events.append(json.loads(line.removeprefix("data: ")))
        except httpx.TransportError as error:
            raise ServerDied(f"{type(error).__name__} at {path}") from error
        for event in events:
            if "error" in event:
                await self._refused(path, 500, json.dumps(event["error"]))
        if not ended:
            raise ServerDied(f"an answer that breaks off at {path}")
        return events

    async def _refused(self, path: str, status: int, text: str) -> NoReturn:
        if status >= _SERVER_ERROR and not await self.healthy():
            raise ServerDied(f"HTTP {status} at {path}")
        raise EngineError(
            f"vLLM refused {path} with HTTP {status}: {' '.join(text.split())[:300]} "
            f"(log: {self.log})"
        )

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            raise EngineError("the vLLM server is not running: call start() first")
        return self._client

    async def stop(self) -> None:
        """End the process and all it started; safe to call twice, or before `start`."""
        # Forgotten before anything is waited for: cancelled here, it is stopped all the same.
        client, self._client = self._client, None
        liveness, self._liveness = self._liveness, None
        directory, self._directory = self._directory, None
        try:
            if liveness is not None:
                await asyncio.to_thread(_end, liveness)
            if client is not None:
                await client.aclose()
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)


def _has_ended(liveness: socket.socket, *, within_seconds: float = 0) -> bool:
    # Not `select.select`: it refuses descriptors from 1024 on.
    poll = select.poll()
    poll.register(liveness, select.POLLIN)
    return bool(poll.poll(within_seconds * 1000))


def _end(liveness: socket.socket) -> None:
    with liveness:
        liveness.shutdown(socket.SHUT_WR)
        _has_ended(liveness, within_seconds=_STOP_SECONDS)
