"""Context caches at Gemini: a long rubric is sent once and then named.

    system ─▶ long enough? ─▶ cache made, once ─▶ its name, until it is about to end
                                                └▶ deleted when the coach closes

Making one costs its tokens, which whoever made it is billed. What its storage costs by the hour is
on the provider's bill only.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx2
from google import genai
from google.auth import exceptions as auth_errors
from google.genai import errors, types

from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.prices import Usage, estimated_tokens
from mappa_core.coach.providers.provider import Final, Passing, ProviderError, safe, status_error


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCache:
    """A system text that the provider keeps."""

    name: str
    made_at: float
    """On the monotonic clock."""


def no_token(error: auth_errors.GoogleAuthError, secrets: tuple[str, ...]) -> ProviderError:
    """Why there is no access token to ask with."""
    detail = safe(f"no access token: {error}", *secrets)
    return Passing("error", detail) if error.retryable else Final("refused", detail)


class ContextCaches:
    """Makes, remembers and deletes the caches of one model."""

    def __init__(
        self,
        client: genai.Client,
        config: CoachModelConfig,
        *,
        secrets: tuple[str, ...] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._config, self._secrets, self._now = client, config, secrets, now
        self._made: dict[str, ContextCache] = {}
        self._lock = asyncio.Lock()

    async def of(self, system: str) -> tuple[str | None, Usage]:
        """The name of the cache that holds `system`, and what making it took just now.

        None where caching is off or `system` too short for it.

        Raises:
            ProviderError: It could not be made.
        """
        wanted = self._config.context_cache
        if not wanted.enabled or estimated_tokens(system) < wanted.minimum_tokens:
            return None, Usage()
        if (known := self._standing(system)) is not None:
            return known, Usage()
        async with self._lock:
            if (known := self._standing(system)) is not None:
                return known, Usage()
            return await self._make(system)

    def forget(self, system: str) -> None:
        """The provider has lost it; the next one who asks makes another."""
        self._made.pop(system, None)

    async def close(self) -> None:
        """Delete what still stands."""
        for system in tuple(self._made):
            name = self._standing(system)
            self.forget(system)
            if name is not None:
                # Whatever stays ends by itself.
                with suppress(errors.APIError, httpx2.HTTPError, auth_errors.GoogleAuthError):
                    await self._client.aio.caches.delete(name=name)

    def _standing(self, system: str) -> str | None:
        """Its name, if a call that begins now will end before the cache does."""
        known = self._made.get(system)
        lasts = self._config.context_cache.ttl_seconds - self._config.attempt_seconds
        return known.name if known and self._now() - known.made_at < lasts else None

    async def _make(self, system: str) -> tuple[str, Usage]:
        made_at = self._now()
        settings = types.CreateCachedContentConfig(
            system_instruction=system,
            display_name="mappa coach",
            ttl=f"{self._config.context_cache.ttl_seconds}s",
        )
        try:
            made = await self._client.aio.caches.create(model=self._config.model, config=settings)
        except errors.APIError as error:
            raise self._refused(error) from None
        except auth_errors.GoogleAuthError as error:
            raise no_token(error, self._secrets) from None
        except httpx2.TimeoutException:
            raise Passing("timeout", "no context cache: the connection timed out") from None
        except httpx2.TransportError as error:
            detail = f"no context cache: {type(error).__name__}: {error}"
            raise Passing("error", safe(detail, *self._secrets)) from None
        self._made[system] = ContextCache(name=made.name or "", made_at=made_at)
        counted = made.usage_metadata
        tokens = counted.total_token_count if counted is not None else None
        return made.name or "", Usage(prompt=tokens or 0)

    def _refused(self, error: errors.APIError) -> ProviderError:
        said = f"no context cache: {error.status or ''} {error.message or 'no message'}"
        return status_error(error.code or 500, safe(said, *self._secrets))
