"""Letters to Gemini: google-genai writes the first of a kind, the others are copies of it.

    (system, seed) ─▶ google-genai ─▶ its HTTP request, kept ─▶ Letter ─▶ a body for each case

google-genai takes about 3 ms of a core to put one request together, a copy takes microseconds. As
the letter is google-genai's own, so are address, headers, access token and wire format; it is
written anew every minute, because access tokens pass.
"""

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.request import getproxies, proxy_bypass

import httpx2
from google import genai
from google.genai import types
from yarl import URL

FRESH_SECONDS = 60.0
"""google-auth renews a token minutes before it ends."""
KINDS = 256
"""Letters kept: one per agent and repeat."""
# What belongs to one connection or one body, and is set by whoever sends it.
_NOT_COPIED = frozenset(
    {"host", "content-length", "accept", "accept-encoding", "connection", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A request with a gap where the case goes."""

    url: URL
    headers: Mapping[str, str]
    proxy: str | None
    before: bytes
    after: bytes
    written_at: float
    """On the clock that `Letters` goes by."""

    def body(self, text: str) -> bytes:
        """The JSON body that asks about `text`."""
        return self.before + json.dumps(text).encode() + self.after


class KeepingTransport(httpx2.AsyncHTTPTransport):
    """Keeps requests for content instead of sending them; all others go out."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: httpx2.Request | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request for content with nothing."""
        if not request.url.path.endswith(":generateContent"):
            return await super().handle_async_request(request)
        await request.aread()
        self.kept = request
        return httpx2.Response(200, json={}, request=request)


class Letters:
    """Writes letters with a client whose transport is a `KeepingTransport`."""

    def __init__(
        self,
        client: genai.Client,
        transport: KeepingTransport,
        model: str,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        # The client must stay referenced, or it closes itself.
        self._client, self._transport, self._model, self._now = client, transport, model, now
        self._written: OrderedDict[tuple[str, int], Letter] = OrderedDict()
        self._lock = asyncio.Lock()

    async def letter(
        self, key: tuple[str, int], settings: Callable[[], types.GenerateContentConfig]
    ) -> Letter:
        """The letter of a kind, written anew where it is not fresh.

        Args:
            key: What tells kinds apart.
            settings: All of the request but its case; asked for only where it is written.

        Raises:
            GoogleAuthError: There is no access token.
        """
        if (known := self._fresh(key)) is not None:
            return known
        async with self._lock:
            if (known := self._fresh(key)) is not None:
                return known
            written = self._written[key] = await self._write(settings())
            while len(self._written) > KINDS:
                self._written.popitem(last=False)
            return written

    def _fresh(self, key: tuple[str, int]) -> Letter | None:
        known = self._written.get(key)
        return known if known and self._now() - known.written_at < FRESH_SECONDS else None

    async def _write(self, settings: types.GenerateContentConfig) -> Letter:
        gap = secrets.token_hex(16)
        await self._client.aio.models.generate_content(
            model=self._model, contents=gap, config=settings
        )
        request, self._transport.kept = self._transport.kept, None
        if request is None:
            raise RuntimeError("google-genai sent its request past the transport it was given")
        before, after = request.content.split(json.dumps(gap).encode())
        return Letter(
            url=URL(str(request.url), encoded=True),
            proxy=_proxy_of(request.url),
            headers={k: v for k, v in request.headers.items() if k.lower() not in _NOT_COPIED},
            before=before,
            after=after,
            written_at=self._now(),
        )


def _proxy_of(url: httpx2.URL) -> str | None:
    """The proxy that the environment names for an address."""
    return None if proxy_bypass(url.host) else getproxies().get(url.scheme)
