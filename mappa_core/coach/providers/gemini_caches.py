"""Context caches at Gemini: a long rubric is sent once and then named.

    system ─▶ long enough? ─▶ cache made, once ─▶ its name, until it is about to end
                                                └▶ deleted when the coach closes

Making one costs its tokens, billed to the score that needed it first. What its storage costs by
the hour is on the provider's bill only.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import httpx2
from google import genai
from google.auth.exceptions import GoogleAuthError
from google.genai import types
from google.genai.errors import APIError

from mappa_core.coach.budget import Usage, estimated_tokens
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.gemini_replies import provider_error


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
        self._made: dict[str, tuple[str, float]] = {}
        """Name of the cache and when it was made, by system text."""
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
        """The provider has lost it; the next call makes another."""
        self._made.pop(system, None)

    async def close(self) -> None:
        """Delete what still stands."""
        for system in tuple(self._made):
            name = self._standing(system)
            self.forget(system)
            if name is not None:
                # Whatever stays ends by itself.
                with suppress(APIError, httpx2.HTTPError, GoogleAuthError):
                    await self._client.aio.caches.delete(name=name)

    def _standing(self, system: str) -> str | None:
        """Its name, if a call that begins now will end before the cache does."""
        name, made_at = self._made.get(system, (None, 0.0))
        lasts = self._config.context_cache.ttl_seconds - self._config.attempt_seconds
        return name if self._now() - made_at < lasts else None

    async def _make(self, system: str) -> tuple[str, Usage]:
        made_at = self._now()
        settings = types.CreateCachedContentConfig(
            system_instruction=system,
            display_name="mappa coach",
            ttl=f"{self._config.context_cache.ttl_seconds}s",
        )
        try:
            made = await self._client.aio.caches.create(model=self._config.model, config=settings)
        except (APIError, GoogleAuthError, httpx2.HTTPError, ValueError) as error:
            raise provider_error(error, self._secrets, "no context cache: ") from None
        self._made[system] = made.name or "", made_at
        counted = made.usage_metadata
        tokens = counted.total_token_count if counted is not None else None
        return made.name or "", Usage(prompt=tokens or 0)
