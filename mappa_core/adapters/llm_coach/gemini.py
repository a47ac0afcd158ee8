"""Gemini API and Vertex AI, through google-genai.

The client's own retries stay off. Its async calls go through httpx2, whatever else is installed:
with aiohttp, timeouts and refused connections would be other exceptions.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import httpx2
from google import genai
from google.auth import exceptions as auth_errors
from google.genai import errors, types
from google.oauth2 import service_account

from mappa_core.adapters.llm_coach.provider import (
    Final,
    Passing,
    ProviderError,
    ProviderReply,
    retry_after,
    safe,
    status_error,
)
from mappa_core.coaching.prices import Usage
from mappa_core.coaching.replies import REPLY_SCHEMA
from mappa_core.config import CoachModelConfig
from mappa_core.domain.errors import ConfigError

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_BLOCKED = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"}
)


class GeminiProvider:
    """One model of the Gemini API or of Vertex AI."""

    def __init__(
        self, client: genai.Client, config: CoachModelConfig, *, secrets: tuple[str, ...]
    ) -> None:
        # The client must stay referenced, or it closes itself.
        self._client, self._config, self._secrets = client, config, secrets

    @property
    def name(self) -> str:
        """`gemini` or `vertex`."""
        return self._config.backend

    async def ask(self, system: str, user: str, *, seed: int) -> ProviderReply:
        """Send one request, without any retry.

        Raises:
            ProviderError: There is no reply.
        """
        try:
            response = await self._client.aio.models.generate_content(
                model=self._config.model, contents=user, config=self._settings(system, seed)
            )
        except errors.APIError as error:
            raise self._api_error(error) from None
        except httpx2.TimeoutException:
            raise Passing("timeout", "the connection timed out") from None
        except httpx2.TransportError as error:
            raise Passing("error", safe(f"{type(error).__name__}: {error}")) from None
        except auth_errors.GoogleAuthError as error:
            raise self._auth_error(error) from None
        except (ValueError, errors.UnknownApiResponseError) as error:
            detail = f"the answer is not what Gemini sends: {error}"
            raise Passing("error", safe(detail, *self._secrets)) from None
        return _reply(response)

    async def close(self) -> None:
        """Give connections back."""
        await self._client.aio.aclose()

    def _settings(self, system: str, seed: int) -> types.GenerateContentConfig:
        budget = self._config.thinking_budget
        thinking = None if budget is None else types.ThinkingConfig(thinking_budget=budget)
        return types.GenerateContentConfig(
            system_instruction=system,
            temperature=self._config.temperature,
            max_output_tokens=self._config.max_output_tokens,
            thinking_config=thinking,
            response_mime_type="application/json",
            response_json_schema=dict(REPLY_SCHEMA),
            seed=seed,
        )

    def _api_error(self, error: errors.APIError) -> ProviderError:
        detail = safe(f"{error.status or ''} {error.message or 'no message'}", *self._secrets)
        headers = cast("Mapping[str, str]", getattr(error.response, "headers", None) or {})
        wish = _retry_info(error.details) or retry_after(headers.get("retry-after"))
        return status_error(error.code or 500, detail, wish)

    def _auth_error(self, error: auth_errors.GoogleAuthError) -> ProviderError:
        detail = safe(f"no access token: {error}", *self._secrets)
        return Passing("error", detail) if error.retryable else Final("refused", detail)


def gemini_provider(config: CoachModelConfig, api_key: str) -> GeminiProvider:
    """The Gemini API with a key."""
    client = genai.Client(vertexai=False, api_key=api_key, http_options=http_options(config))
    return GeminiProvider(client, config, secrets=(api_key,))


def vertex_provider(
    config: CoachModelConfig, project: str, location: str, credentials: Path | None
) -> GeminiProvider:
    """Vertex AI with a service account's file, or with the machine's own credentials.

    Raises:
        ConfigError: The file is no service account's.
    """
    account: service_account.Credentials | None = None
    if credentials is not None:
        try:
            account = service_account.Credentials.from_service_account_file(
                str(credentials), scopes=_SCOPES
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                "GOOGLE_APPLICATION_CREDENTIALS names no readable service account file "
                f"({type(error).__name__}): point it at the JSON key"
            ) from None
    client = genai.Client(
        vertexai=True,
        project=project,
        location=location,
        credentials=account,
        http_options=http_options(config),
    )
    return GeminiProvider(client, config, secrets=())


def http_options(config: CoachModelConfig) -> types.HttpOptions:
    """Where and how the client connects; `retry_options` stay unset, so it never retries."""
    limits = httpx2.Limits(
        max_connections=config.concurrency, max_keepalive_connections=config.concurrency
    )
    return types.HttpOptions(
        base_url=config.base_url,
        api_version="v1beta1" if config.backend == "vertex" else "v1beta",
        timeout=round(config.attempt_seconds * 1000),
        async_client_args={"transport": httpx2.AsyncHTTPTransport(limits=limits)},
    )


def _reply(response: types.GenerateContentResponse) -> ProviderReply:
    usage = _usage(response.usage_metadata)
    feedback = response.prompt_feedback
    if feedback is not None and feedback.block_reason is not None:
        raise Final("blocked", f"the prompt was blocked: {feedback.block_reason}", usage=usage)
    if not response.candidates:
        raise Final("blocked", "the answer has no candidate", usage=usage)
    candidate = response.candidates[0]
    finish = str(getattr(candidate.finish_reason, "value", candidate.finish_reason))
    if finish in _BLOCKED:
        raise Final("blocked", f"the reply was blocked: {finish}", usage=usage)
    parts = (candidate.content.parts if candidate.content else None) or []
    return ProviderReply(
        text="".join(part.text for part in parts if part.text and not part.thought),
        usage=usage,
        model_version=response.model_version or "unknown",
    )


def _usage(counted: types.GenerateContentResponseUsageMetadata | None) -> Usage:
    if counted is None:
        return Usage()
    return Usage(
        prompt=counted.prompt_token_count or 0,
        cached=counted.cached_content_token_count or 0,
        reply=counted.candidates_token_count or 0,
        thought=counted.thoughts_token_count or 0,
    )


def _retry_info(details: object) -> float | None:
    """Seconds of the `RetryInfo` among an error's details."""
    for detail in _details(details):
        if str(detail.get("@type", "")).endswith("google.rpc.RetryInfo"):
            delay = detail.get("retryDelay", detail.get("retry_delay"))
            if isinstance(delay, str):
                return retry_after(delay.removesuffix("s"))
    return None


def _details(details: object) -> Iterable[Mapping[str, Any]]:
    if isinstance(details, dict):
        error = cast("dict[str, Any]", details).get("error")
        listed = error.get("details") if isinstance(error, dict) else None
        details = cast("object", listed)
    items = cast("list[object]", details) if isinstance(details, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
