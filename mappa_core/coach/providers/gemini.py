"""Gemini API and Vertex AI through google-genai, whose own retries stay off."""

from dataclasses import replace
from pathlib import Path

import httpx2
from google import genai
from google.auth.exceptions import GoogleAuthError
from google.genai import types
from google.genai.errors import APIError
from google.oauth2 import service_account

from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.gemini_caches import ContextCaches
from mappa_core.coach.providers.gemini_replies import CacheGone, provider_error, read_answer
from mappa_core.coach.providers.provider import ProviderError, ProviderReply
from mappa_core.coach.replies import REPLY_SCHEMA
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class GeminiProvider:
    """Asks one model of the Gemini API or of Vertex AI."""

    def __init__(
        self,
        client: genai.Client,
        http: httpx2.AsyncClient,
        config: CoachModelConfig,
        *,
        secrets: tuple[str, ...] = (),
    ) -> None:
        """Ask with `client`, whose calls go out through `http`."""
        self._client, self._http, self._config, self._secrets = client, http, config, secrets
        self._caches = ContextCaches(client, config, secrets=secrets)

    async def ask(self, system: str, user: str, *, seed: int, judges: bool = True) -> ProviderReply:
        """Send one request, without any retry."""
        cache, paid = await self._caches.of(system)
        try:
            answer = await self._client.aio.models.generate_content(
                model=self._config.model,
                contents=user,
                config=self._settings(system, seed, cache, judges=judges),
            )
            reply = read_answer(answer)
        except ProviderError as error:
            error.usage += paid
            raise
        except (APIError, GoogleAuthError, httpx2.HTTPError, ValueError) as error:
            refused = provider_error(error, self._secrets)
            if isinstance(refused, CacheGone):
                self._caches.forget(system)
            refused.usage += paid
            raise refused from None
        return replace(reply, usage=reply.usage and reply.usage + paid)

    async def close(self) -> None:
        """Give connections back."""
        await self._caches.close()
        # google-genai leaves a client that it was given open.
        await self._client.aio.aclose()
        await self._http.aclose()

    def _settings(
        self, system: str, seed: int, cache: str | None, *, judges: bool
    ) -> types.GenerateContentConfig:
        budget = self._config.thinking_budget
        thinking = None if budget is None else types.ThinkingConfig(thinking_budget=budget)
        return types.GenerateContentConfig(
            system_instruction=None if cache else system,
            cached_content=cache,
            temperature=self._config.temperature,
            # Thoughts count against Gemini's limit.
            max_output_tokens=self._config.max_output_tokens + (budget or 0),
            thinking_config=thinking,
            response_mime_type="application/json" if judges else None,
            response_json_schema=dict(REPLY_SCHEMA) if judges else None,
            seed=seed,
        )


def open_provider(config: CoachModelConfig, settings: Settings) -> GeminiProvider:
    """Open the Gemini API with its key, or Vertex AI with a project.

    Raises:
        ConfigError: Vertex AI's service account file cannot be read.
    """
    if config.backend == "vertex":
        project, file = settings.vertex_project or "", settings.google_credentials
        return vertex_provider(config, project, settings.vertex_location, file)
    return gemini_provider(config, settings.secret("GOOGLE_API_KEY") or "")


def gemini_provider(config: CoachModelConfig, api_key: str) -> GeminiProvider:
    """Open the Gemini API with a key."""
    http = open_http(config)
    client = genai.Client(vertexai=False, api_key=api_key, http_options=http_options(config, http))
    return GeminiProvider(client, http, config, secrets=(api_key,))


def vertex_provider(
    config: CoachModelConfig, project: str, location: str, credentials: Path | None
) -> GeminiProvider:
    """Open Vertex AI with a service account's file, or with the machine's own credentials.

    Raises:
        ConfigError: The file is no service account's.
    """
    http = open_http(config)
    client = genai.Client(
        vertexai=True,
        project=project,
        location=location,
        credentials=None if credentials is None else _account(credentials),
        http_options=http_options(config, http),
    )
    return GeminiProvider(client, http, config)


def _account(file: Path) -> service_account.Credentials:
    try:
        return service_account.Credentials.from_service_account_file(str(file), scopes=_SCOPES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "GOOGLE_APPLICATION_CREDENTIALS names no readable service account file "
            f"({type(error).__name__}): point it at the JSON key"
        ) from None


def open_http(config: CoachModelConfig) -> httpx2.AsyncClient:
    """Open the connections; no redirect is followed, because the key is for one address."""
    limits = httpx2.Limits(
        max_connections=config.concurrency, max_keepalive_connections=config.concurrency
    )
    return httpx2.AsyncClient(limits=limits)


def http_options(config: CoachModelConfig, http: httpx2.AsyncClient) -> types.HttpOptions:
    """Say where and how google-genai connects: through `http`, once for each call."""
    return types.HttpOptions(
        base_url=config.base_url,
        api_version="v1beta1" if config.backend == "vertex" else "v1beta",
        timeout=round(config.attempt_seconds * 1000),
        httpx_async_client=http,
        retry_options=types.HttpRetryOptions(attempts=1),
    )
