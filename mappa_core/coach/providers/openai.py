"""Any server that speaks OpenAI's chat protocol: OpenAI, vLLM, llama.cpp, and many others."""

import openai
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import ResponseFormat

from mappa_core.coach.budget import Usage
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.provider import (
    Final,
    Passing,
    ProviderError,
    ProviderReply,
    retry_after,
    safe,
    status_error,
)
from mappa_core.coach.replies import REPLY_SCHEMA
from mappa_core.core.settings import Settings

_FORMAT: ResponseFormat = {
    "type": "json_schema",
    "json_schema": {"name": "judgement", "schema": dict(REPLY_SCHEMA), "strict": False},
}
NO_KEY = "none"
"""What a local server is sent, which asks for no key."""


class OpenAiProvider:
    """One model behind an OpenAI-compatible address; the client's own retries stay off."""

    def __init__(self, config: CoachModelConfig, api_key: str | None) -> None:
        self._config, self._key = config, api_key
        self._client = openai.AsyncOpenAI(
            api_key=api_key or NO_KEY,
            base_url=config.base_url,
            timeout=config.attempt_seconds,
            max_retries=0,
        )

    async def ask(self, system: str, user: str, *, seed: int, judges: bool = True) -> ProviderReply:
        """Send one request, without any retry."""
        try:
            answer = await self._client.chat.completions.create(
                model=self._config.model,
                messages=[
                    {"role": "system", "content": system},
                    {"role": "user", "content": user},
                ],
                temperature=self._config.temperature,
                max_completion_tokens=self._config.max_output_tokens,
                reasoning_effort=self._config.reasoning_effort or openai.omit,
                response_format=_FORMAT if judges else openai.omit,
                seed=seed,
            )
        except (openai.APIError, ValueError) as error:
            raise failure(error, self._key or "") from None
        return reply_of(answer)

    async def close(self) -> None:
        """Give connections back."""
        await self._client.close()


def failure(error: Exception, secret: str = "") -> ProviderError:
    """Say of an error of the client's library whether it can pass, without `secret`."""
    said = safe(str(error), secret)
    if isinstance(error, openai.APIStatusError):
        wish = retry_after(error.response.headers.get("retry-after"))
        return status_error(error.status_code, said, wish)
    if isinstance(error, openai.APITimeoutError):
        return Passing("timeout", "the connection timed out")
    return Passing("error", said)


def open_provider(config: CoachModelConfig, settings: Settings) -> OpenAiProvider:
    """Open a client with the key of the environment."""
    return OpenAiProvider(config, settings.secret("OPENAI_API_KEY"))


def reply_of(answer: ChatCompletion) -> ProviderReply:
    """Read an answer.

    Raises:
        Final: It was refused.
    """
    usage = usage_of(answer)
    if not answer.choices:
        raise Final("blocked", "the answer has no choice", usage=usage)
    choice = answer.choices[0]
    if choice.finish_reason == "content_filter" or choice.message.refusal:
        raise Final("blocked", f"refused: {safe(choice.message.refusal or 'filter')}", usage=usage)
    return ProviderReply(
        text=choice.message.content or "",
        usage=usage,
        model_version=answer.model or "unknown",
        cut=choice.finish_reason == "length",
    )


def usage_of(answer: ChatCompletion) -> Usage | None:
    """What the server says the call took, if it does."""
    counted = answer.usage
    if counted is None:
        return None
    prompt, reply = counted.prompt_tokens_details, counted.completion_tokens_details
    thought = (reply.reasoning_tokens if reply else None) or 0
    # Most count thoughts among the completion, some (xAI) beside it; the total holds both.
    total = getattr(counted, "total_tokens", None) or 0
    return Usage(
        prompt=counted.prompt_tokens,
        cached=(prompt.cached_tokens if prompt else None) or 0,
        reply=max(counted.completion_tokens, total - counted.prompt_tokens, thought) - thought,
        thought=thought,
    )
