"""Anthropic's Messages API; the rubric is marked to be cached."""

import anthropic
from anthropic.types import Message, ThinkingConfigParam

from mappa_core.coach.budget import Usage
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.provider import (
    Final,
    Passing,
    ProviderReply,
    retry_after,
    safe,
    status_error,
)
from mappa_core.core.settings import Settings


class AnthropicProvider:
    """One model of Anthropic's; the client's own retries stay off."""

    def __init__(self, config: CoachModelConfig, api_key: str) -> None:
        self._config, self._key = config, api_key
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=config.base_url,
            timeout=config.attempt_seconds,
            max_retries=0,
        )

    async def ask(
        self,
        system: str,
        user: str,
        *,
        seed: int,  # noqa: ARG002
        judges: bool = True,  # noqa: ARG002
    ) -> ProviderReply:
        """Send one request, without any retry; this provider takes neither seed nor form."""
        budget = self._config.thinking_budget or 0
        thinking: ThinkingConfigParam | None = (
            {"type": "enabled", "budget_tokens": budget} if budget else None
        )
        try:
            answer = await self._client.messages.create(
                model=self._config.model,
                max_tokens=self._config.max_output_tokens + budget,
                system=[{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
                messages=[{"role": "user", "content": user}],
                # A thinking model samples at 1 and refuses anything else.
                extra_body={"temperature": 1.0 if thinking else self._config.temperature},
                thinking=thinking or anthropic.omit,
            )
        except anthropic.APIStatusError as error:
            wish = retry_after(error.response.headers.get("retry-after"))
            raise status_error(error.status_code, self._safe(error), wish) from None
        except anthropic.APITimeoutError:
            raise Passing("timeout", "the connection timed out") from None
        except (anthropic.APIError, ValueError) as error:
            raise Passing("error", self._safe(error)) from None
        return _reply(answer)

    async def close(self) -> None:
        """Give connections back."""
        await self._client.close()

    def _safe(self, error: Exception) -> str:
        return safe(str(error), self._key)


def open_provider(config: CoachModelConfig, settings: Settings) -> AnthropicProvider:
    """Open a client with the key of the environment."""
    return AnthropicProvider(config, settings.secret("ANTHROPIC_API_KEY") or "")


def _reply(answer: Message) -> ProviderReply:
    counted = answer.usage
    cached = counted.cache_read_input_tokens or 0
    usage = Usage(
        prompt=counted.input_tokens + cached + (counted.cache_creation_input_tokens or 0),
        cached=cached,
        reply=counted.output_tokens,
    )
    if answer.stop_reason == "refusal":
        raise Final("blocked", "the model refused to answer", usage=usage)
    text = "".join(block.text for block in answer.content if block.type == "text")
    cut = answer.stop_reason == "max_tokens"
    return ProviderReply(text=text, usage=usage, model_version=answer.model, cut=cut)
