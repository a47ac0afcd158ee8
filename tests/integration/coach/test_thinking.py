"""How long a coach may think is said in each provider's own words, and only where it is set."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import ValidationError

from mappa_cli.provider_stub.dialects import ANTHROPIC, OPENAI
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.anthropic import AnthropicProvider
from mappa_core.coach.providers.openai import OpenAiProvider
from mappa_core.coach.providers.provider import ProviderReply
from tests.fakes.recording import Recorder, recording


def sent(backend: str, **settings: Any) -> tuple[dict[str, Any], ProviderReply]:
    """The body of the one request that asking once makes."""
    recorder = Recorder(OPENAI if backend == "openai" else ANTHROPIC)

    async def body() -> ProviderReply:
        async with recording(recorder) as address:
            base = f"{address}/v1" if backend == "openai" else address
            config = CoachModelConfig.model_validate(
                {"backend": backend, "model": "m", "base_url": base, "temperature": 0.2} | settings
            )
            make = OpenAiProvider if backend == "openai" else AnthropicProvider
            provider = make(config, "key")
            try:
                return await provider.ask("Judge.", "Case", seed=1)
            finally:
                await provider.close()

    reply = asyncio.run(body())
    ((_, _, asked),) = recorder.asked
    return json.loads(asked), reply


def test_an_openai_server_is_told_the_effort() -> None:
    asked, reply = sent("openai", reasoning_effort="low")
    assert asked["reasoning_effort"] == "low"
    assert reply.usage
    assert reply.usage.thought == 1
    # A local server that does not know the word must not see it.
    assert "reasoning_effort" not in sent("openai")[0]


def test_anthropic_is_told_the_budget_and_samples_at_one() -> None:
    asked, reply = sent("anthropic", thinking_budget=1024, max_output_tokens=500)
    assert asked["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert asked["max_tokens"] == 1524
    assert asked["temperature"] == 1.0
    assert reply.text == "fine"
    plain = sent("anthropic")[0]
    assert "thinking" not in plain
    assert plain["temperature"] == 0.2


@pytest.mark.parametrize(
    ("backend", "settings", "said"),
    [
        ("openai", {"thinking_budget": 64}, "takes reasoning_effort"),
        ("gemini", {"reasoning_effort": "low"}, "takes thinking_budget"),
        ("local", {"thinking_budget": 64}, "local cannot be told how long to think"),
        ("anthropic", {"context_cache": {"enabled": True}}, "has no context_cache"),
    ],
)
def test_a_setting_that_a_provider_does_not_have_is_refused(
    backend: str, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        CoachModelConfig.model_validate({"backend": backend, "model": "m"} | settings)
