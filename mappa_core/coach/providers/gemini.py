"""Gemini API and Vertex AI: google-genai writes and signs the requests, aiohttp carries them.

The way of a request through google-genai and httpx2 takes 3 ms of a core, which 64 calls at once
cannot afford; a copy of google-genai's own letter over aiohttp takes a tenth. Nobody but the coach
repeats a call.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import httpx2
from google import genai
from google.auth import exceptions as auth_errors
from google.genai import types
from google.oauth2 import service_account

from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.gemini_caches import ContextCaches, no_token
from mappa_core.coach.providers.gemini_letters import KeepingTransport, Letter, Letters
from mappa_core.coach.providers.gemini_replies import read_answer, read_error
from mappa_core.coach.providers.provider import (
    Passing,
    ProviderError,
    ProviderReply,
    retry_after,
    safe,
    status_error,
)
from mappa_core.coach.replies import REPLY_SCHEMA
from mappa_core.core.errors import ConfigError

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class CacheGone(Passing):
    """The provider no longer has the context cache it was pointed at."""


class GeminiProvider:
    """One model of the Gemini API or of Vertex AI."""

    def __init__(
        self,
        client: genai.Client,
        transport: KeepingTransport,
        config: CoachModelConfig,
        *,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._client, self._config, self._secrets = client, config, secrets
        self._letters = Letters(client, transport, config.model)
        self._caches = ContextCaches(client, config, secrets=secrets)
        self._opened: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """`gemini` or `vertex`."""
        return self._config.backend

    async def ask(self, system: str, user: str, *, seed: int) -> ProviderReply:
        """Send one request, without any retry.

        Raises:
            ProviderError: There is no reply.
        """
        cache, paid = await self._caches.of(system)
        try:
            letter = await self._letter(system, seed, cache)
            reply = read_answer(await self._sent(letter, user))
        except ProviderError as error:
            if isinstance(error, CacheGone):
                self._caches.forget(system)
            error.usage += paid
            raise
        except ValueError as error:
            detail = self._safe(f"the answer is not what Gemini sends: {error}")
            raise Passing("error", detail, usage=paid) from None
        return replace(reply, usage=reply.usage and reply.usage + paid)

    async def _sent(self, letter: Letter, text: str) -> bytes:
        try:
            async with self._session().post(
                letter.url,
                data=letter.body(text),
                headers=letter.headers,
                proxy=letter.proxy,
                # Wherever a redirect points, the key is not for it.
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
        except TimeoutError:
            raise Passing("timeout", "the connection timed out") from None
        except aiohttp.ClientError as error:
            raise Passing("error", self._safe(f"{type(error).__name__}: {error}")) from None
        if answer.status != 200:
            raise self._refusal(answer.status, body, answer.headers)
        return body

    async def close(self) -> None:
        """Give connections back."""
        if self._opened is not None:
            await self._opened.close()
        await self._caches.close()
        await self._client.aio.aclose()

    def _session(self) -> aiohttp.ClientSession:
        """Opened on the first call, because it belongs to the loop that runs then."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._config.concurrency, ssl=httpx2.create_ssl_context()
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                # The coach bounds each call.
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._opened

    async def _letter(self, system: str, seed: int, cache: str | None) -> Letter:
        try:
            return await self._letters.letter(
                (cache or system, seed), lambda: self._settings(system, seed, cache)
            )
        except auth_errors.GoogleAuthError as error:
            raise no_token(error, self._secrets) from None

    def _settings(self, system: str, seed: int, cache: str | None) -> types.GenerateContentConfig:
        budget = self._config.thinking_budget
        thinking = None if budget is None else types.ThinkingConfig(thinking_budget=budget)
        return types.GenerateContentConfig(
            system_instruction=None if cache else system,
            cached_content=cache,
            temperature=self._config.temperature,
            # Thoughts count against Gemini's limit.
            max_output_tokens=self._config.max_output_tokens + (budget or 0),
            thinking_config=thinking,
            response_mime_type="application/json",
            response_json_schema=dict(REPLY_SCHEMA),
            seed=seed,
        )

    def _refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> ProviderError:
        error = read_error(body)
        wish = error.retry_after_seconds
        wish = retry_after(headers.get("retry-after")) if wish is None else wish
        detail = self._safe(f"{error.status} {error.message}")
        if status in (403, 404) and "CachedContent" in error.message:
            return CacheGone("error", f"HTTP {status}: {detail}")
        return status_error(status, detail, wish)

    def _safe(self, text: str) -> str:
        return safe(text, *self._secrets)


def gemini_provider(config: CoachModelConfig, api_key: str) -> GeminiProvider:
    """The Gemini API with a key."""
    transport = KeepingTransport()
    client = genai.Client(
        vertexai=False, api_key=api_key, http_options=http_options(config, transport)
    )
    return GeminiProvider(client, transport, config, secrets=(api_key,))


def vertex_provider(
    config: CoachModelConfig, project: str, location: str, credentials: Path | None
) -> GeminiProvider:
    """Vertex AI with a service account's file, or with the machine's own credentials.

    Raises:
        ConfigError: The file is no service account's.
    """
    transport = KeepingTransport()
    client = genai.Client(
        vertexai=True,
        project=project,
        location=location,
        credentials=None if credentials is None else _account(credentials),
        http_options=http_options(config, transport),
    )
    return GeminiProvider(client, transport, config)


def _account(file: Path) -> service_account.Credentials:
    try:
        return service_account.Credentials.from_service_account_file(str(file), scopes=_SCOPES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "GOOGLE_APPLICATION_CREDENTIALS names no readable service account file "
            f"({type(error).__name__}): point it at the JSON key"
        ) from None


def http_options(
    config: CoachModelConfig, transport: httpx2.AsyncBaseTransport
) -> types.HttpOptions:
    """Where and how the client connects; `retry_options` stay unset, so it never retries."""
    return types.HttpOptions(
        base_url=config.base_url,
        api_version="v1beta1" if config.backend == "vertex" else "v1beta",
        timeout=round(config.attempt_seconds * 1000),
        async_client_args={"transport": transport},
    )
