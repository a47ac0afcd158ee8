"""Talks to a vLLM server over HTTP, and knows when it is gone and when it only takes its time."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import httpx

from mappa_core.core.errors import EngineError

REPLY_SECONDS = 900.0
"""A reply that takes longer means a server that hangs; a generation may take any time, as long as
tokens come, of this request or another one."""

_CONNECT_SECONDS = 30.0
_SERVER_ERROR = 500


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
        self._client: httpx.AsyncClient | None = None
        self._heard = 0.0
        self._under_way = 0

    def connect(self, base_url: str, *, socket: str | None = None) -> None:
        """Be the client of the server at `base_url`, on a Unix socket where one is named."""
        transport = httpx.AsyncHTTPTransport(
            uds=socket,
            # A connection kept alive may be closed by the server just as it is used again, which
            # would look like a death; a new one costs little.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        timeout = httpx.Timeout(REPLY_SECONDS, connect=_CONNECT_SECONDS)
        self._client = httpx.AsyncClient(transport=transport, base_url=base_url, timeout=timeout)

    async def disconnect(self) -> None:
        """Let the connections go; safe to call twice."""
        client = self._forgotten()
        if client is not None:
            await client.aclose()

    async def healthy(self) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            response = await self._open_client().get("/health", timeout=10)
        except httpx.TransportError:
            return False
        return response.is_success

    async def get(self, path: str) -> httpx.Response:
        """Read `path`; raises as `post`."""
        return await self._answered("GET", path)

    async def post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
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
    ) -> httpx.Response:
        try:
            response = await self._open_client().request(method, path, json=body)
        except httpx.TransportError as error:
            raise ServerDied(f"{type(error).__name__} at {path}") from error
        if response.is_error:
            await self._refused(path, response.status_code, response.text)
        return response

    async def _taken(self, path: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        ended = False
        try:
            client = self._open_client()
            # How long it may be silent is counted over all requests.
            timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
            async with client.stream("POST", path, json=body, timeout=timeout) as response:
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
        said = " ".join(text.split())[:300]
        raise Refused(
            f"vLLM refused {path} with HTTP {status}: {said} ({self._about})",
            status=status,
            said=said,
        )

    def _forgotten(self) -> httpx.AsyncClient | None:
        """Take the client away, which is left to be closed: from here on nothing is sent."""
        client, self._client = self._client, None
        return client

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            raise EngineError(f"the vLLM server is not running: call start() first ({self._about})")
        return self._client
