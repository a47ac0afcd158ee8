"""How the servers that speak OpenAI's protocol count, each in its own way."""

import pytest
from openai.types.chat import ChatCompletion

from mappa_core.coach.budget import Usage
from mappa_core.coach.providers.openai import usage_of


@pytest.mark.parametrize(
    ("counted", "usage"),
    [
        # OpenAI: thoughts are part of the completion.
        (
            {
                "prompt_tokens": 32,
                "completion_tokens": 103,
                "total_tokens": 135,
                "completion_tokens_details": {"reasoning_tokens": 94},
            },
            Usage(prompt=32, reply=9, thought=94),
        ),
        # xAI: they stand beside it.
        (
            {
                "prompt_tokens": 32,
                "completion_tokens": 9,
                "total_tokens": 135,
                "prompt_tokens_details": {"cached_tokens": 6},
                "completion_tokens_details": {"reasoning_tokens": 94},
            },
            Usage(prompt=32, cached=6, reply=9, thought=94),
        ),
        ({"prompt_tokens": 32, "completion_tokens": 9}, Usage(prompt=32, reply=9)),
        (None, None),
    ],
)
def test_tokens_are_counted_once(counted: dict[str, object] | None, usage: Usage | None) -> None:
    answer = ChatCompletion.construct(
        id="1", object="chat.completion", created=1, model="m", choices=[], usage=counted
    )
    assert usage_of(answer) == usage
