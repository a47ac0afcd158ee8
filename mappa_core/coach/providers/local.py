"""A model on a server of our own: guided replies, late when the server is silent."""

import asyncio
from collections.abc import Iterable

import openai
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import ResponseFormat

from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.local_server import CoachServer, leave, shared_server
from mappa_core.coach.providers.openai import failure, reply_of
from mappa_core.coach.providers.provider import Passing, ProviderReply
from mappa_core.coach.replies import bounded_schema
from mappa_core.core.settings import Settings
from mappa_core.models.serving.server import Elsewhere


class LocalProvider:
    """Asks a model that MAPPA serves itself, in OpenAI's wire format."""

    def __init__(self, config: CoachModelConfig, server: CoachServer) -> None:
        self._config, self._server = config, server
        schema = bounded_schema(
            config.server.rationale_characters,
            tokens=config.max_output_tokens,
            correction=config.correction,
        )
        self._format: ResponseFormat = {
            "type": "json_schema",
            "json_schema": {"name": "judgement", "schema": dict(schema), "strict": True},
        }
        self._open = True

    async def start(self, systems: Iterable[str]) -> None:
        """Bring the server up, unless it is, and let it read the rubrics.

        Cases that come at once would each read the rubric that none of them finds cached.
        """
        for system in systems:
            client = await self._server.running()
            try:
                await client.chat.completions.create(
                    model=self._config.model,
                    messages=[
                        {"role": "system", "content": system},
                        {"role": "user", "content": "."},
                    ],
                    max_completion_tokens=1,
                    # A machine that is gone resets no connection.
                    timeout=self._config.attempt_seconds,
                )
            except openai.APIConnectionError:
                # A rubric that is read later costs time alone.
                await self._server.bring_back(client)

    async def ask(self, system: str, user: str, *, seed: int, judges: bool = True) -> ProviderReply:
        """Send one request as soon as the server has a place for it, without any retry."""
        async with self._server.place() as client:
            call = asyncio.ensure_future(self._streamed(client, system, user, seed, judges=judges))
            try:
                await self._until_done(call)
                return reply_of(call.result())
            except (openai.APIError, ValueError) as error:
                await self._server.bring_back(client)
                raise failure(error) from None
            except Passing:
                if self._server.elsewhere is not None:
                    # Its machine may be gone, which resets no connection.
                    call.cancel()
                    await asyncio.wait((call,))
                    await self._server.bring_back(client)
                raise
            finally:
                call.cancel()

    async def close(self) -> None:
        """Give the server up; the last coach stops it. Safe to call twice."""
        if self._open:
            self._open = False
            await leave(self._server)

    async def _until_done(self, call: "asyncio.Future[ChatCompletion]") -> None:
        """Wait for a call as long as the server gives tokens, to it or to others.

        Raises:
            Passing: The server was silent for too long.
        """
        self._server.hear()
        limit = self._config.attempt_seconds
        while (left := limit - self._server.silent_seconds) > 0:
            done, _ = await asyncio.wait((call,), timeout=left)
            if done:
                return
        raise Passing("timeout", f"the coach's server gave no token within {limit:g} s")

    async def _streamed(
        self, client: openai.AsyncOpenAI, system: str, user: str, seed: int, *, judges: bool
    ) -> ChatCompletion:
        async with client.chat.completions.stream(
            model=self._config.model,
            messages=[
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ],
            temperature=self._config.temperature,
            max_completion_tokens=self._config.max_output_tokens,
            response_format=self._format if judges else openai.omit,  # pyright: ignore[reportArgumentType]
            stream_options={"include_usage": True},
            seed=seed,
        ) as stream:
            async for _ in stream:
                self._server.hear()
            return await stream.get_final_completion()


def open_provider(
    config: CoachModelConfig, settings: Settings, elsewhere: Elsewhere | None = None
) -> LocalProvider:
    """Take part in the server of the coach's model, which is started when it is first asked."""
    return LocalProvider(config, shared_server(config, settings, elsewhere))
