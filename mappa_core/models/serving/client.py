"""Talks to a vLLM server over HTTP, and knows when it is gone and when it only takes its time."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn, cast

import aiohttp

from mappa_core.core.errors import EngineError

REPLY_SECONDS = 900.0
"""A reply that takes longer means a server that hangs; a generation may take any time, as long as
tokens come, of this request or another one."""

_CONNECT_SECONDS = 30.0
_HEALTH_SECONDS = 10.0
_LINE_BYTES = 2**20
"""Of one event, at most."""
_GONE = (aiohttp.ClientError, TimeoutError, ConnectionError)
"""What a client meets where no answer comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server answered."""

    status: int
    """Of HTTP."""
    body: bytes

    def json(self) -> dict[str, Any]:
        """Read the body as a JSON object."""
        return cast("dict[str, Any]", json.loads(self.body))


class ServerDied(Exception):
    """The server is gone; its request may be repeated after a restart, or at another one."""


class Refused(EngineError):
    """A server that lives does not do what it is asked."""

    def __init__(self, message: str, *, status: int, said: str) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP."""
        self.said = said
        """The server's own words."""


class VllmClient:
    """The only client that a vLLM server needs; `connect` comes first."""

    def __init__(self, about: str) -> None:
        """Keep what every refusal says about the server: where it is, or where its log lies."""
        self._about = about
        self._address: tuple[str, str | None] | None = None
        self._client: aiohttp.ClientSession | None = None
        self._heard = 0.0
        self._under_way = 0

    def connect(self, base_url: str, *, socket: str | None = None) -> None:
        """Be the client of the server at `base_url`, on a Unix socket where one is named."""
        self._address = base_url, socket

    @property
    def reached_at(self) -> tuple[str, str | None]:
        """The base URL of its server, and the Unix socket that it listens on, if it does.

        Raises:
            EngineError: It is not connected.
        """
        if self._address is None:
            raise EngineError(f"the vLLM server is not running: call start() first ({self._about})")
        return self._address

    async def disconnect(self) -> None:
        """Let the connections go; safe to call twice."""
        client = self._forgotten()
        if client is not None:
            await client.close()

    async def break_off(self) -> None:
        """Let the requests under way find the server dead."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def healthy(self) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            reply = await self._asked("GET", "/health", seconds=_HEALTH_SECONDS)
        except _GONE:
            return False
        return reply.status == HTTPStatus.OK

    async def get(self, path: str) -> Reply:
        """Read `path`; raises as `post`."""
        return await self._answered("GET", path)

    async def post(self, path: str, body: Mapping[str, object]) -> Reply:
        """Send `body` as JSON.

        Raises:
            ServerDied: No answer will come.
            EngineError: The server lives and refuses.
        """
        return await self._answered("POST", path, body)

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

    async def _answered(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> Reply:
        try:
            reply = await self._asked(method, path, body, seconds=REPLY_SECONDS)
        except _GONE as error:
            raise ServerDied(f"{type(error).__name__} at {path}") from error
        if reply.status >= HTTPStatus.BAD_REQUEST:
            await self._refused(path, reply.status, reply.body)
        return reply

    async def _asked(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        seconds: float,
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(total=seconds, connect=_CONNECT_SECONDS)
        client = self._open_client()
        async with client.request(method, path, json=body, timeout=timeout) as response:
            return Reply(status=response.status, body=await response.read())

    async def _taken(self, path: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        ended = False
        # How long it may be silent is counted over all requests.
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
        try:
            async with self._open_client().post(path, json=body, timeout=timeout) as response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    await self._refused(path, response.status, await response.read())
                async for line in response.content:
                    self._heard = time.monotonic()
                    ended = ended or line.strip() == b"data: [DONE]"
                    if line.startswith(b"data: {"):
                        events.append(json.loads(line.removeprefix(b"data: ")))
        except _GONE as error:
            raise ServerDied(f"{type(error).__name__} at {path}") from error
        for event in events:
            if "error" in event:
                await self._refused(path, 500, json.dumps(event["error"]).encode())
        if not ended:
            raise ServerDied(f"an answer that breaks off at {path}")
        return events

    async def _refused(self, path: str, status: int, body: bytes) -> NoReturn:
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not await self.healthy():
            raise ServerDied(f"HTTP {status} at {path}")
        said = " ".join(body.decode(errors="replace").split())[:300]
        raise Refused(
            f"vLLM refused {path} with HTTP {status}: {said} ({self._about})",
            status=status,
            said=said,
        )

    def _forgotten(self) -> aiohttp.ClientSession | None:
        """Take the client away, which is left to be closed: from here on nothing is sent."""
        client, self._client, self._address = self._client, None, None
        return client

    def _open_client(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = _opened(*self.reached_at)
        return self._client


def _opened(base_url: str, socket: str | None) -> aiohttp.ClientSession:
    """Open a session in the running event loop, which is the one it is for."""
    # A connection kept alive may be closed by the server just as it is used again, which would
    # look like a death; a new one costs little.
    connector = (
        aiohttp.TCPConnector(limit=0, force_close=True)
        if socket is None
        else aiohttp.UnixConnector(socket, limit=0, force_close=True)
    )
    return aiohttp.ClientSession(
        base_url,
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_LINE_BYTES,
    )
