"""The wire formats of the providers: requests as they are sent, answers as they come back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from mappa_cli.provider_stub.script import Question

Body: TypeAlias = dict[str, Any]
"""A JSON object on the wire; it never leaves the stand-in."""

RETRY_SECONDS = 0.05
VERSION_SUFFIX = "-stub-001"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a call is billed for."""

    prompt: int = 0
    cached: int = 0
    reply: int = 0
    thought: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one provider's requests are read and its answers written."""

    question: Callable[[Body], Question]
    answer: Callable[[str, str, Tokens, bool], Body]
    """Model, text, tokens and whether the text was cut off."""
    blocked: Callable[[str, Tokens], Body]
    error: Callable[[int, str, str], Body]
    """Status, its name and a message."""
    key_header: str


def _either(body: Mapping[str, Any], camel: str, snake: str, default: object) -> Any:  # noqa: ANN401
    """A field in either of the casings that Google's clients send."""
    return body.get(camel, body.get(snake, default))


def _gemini_question(body: Body) -> Question:
    system = _either(body, "systemInstruction", "system_instruction", {})
    config = _either(body, "generationConfig", "generation_config", {})
    thinking = _either(config, "thinkingConfig", "thinking_config", {})
    return Question(
        system=_gemini_text([system]),
        user=_gemini_text(body["contents"]),
        max_output_tokens=int(_either(config, "maxOutputTokens", "max_output_tokens", 8192)),
        thinking_budget=int(_either(thinking, "thinkingBudget", "thinking_budget", 0)),
        structured=_either(config, "responseJsonSchema", "response_json_schema", None) is not None,
    )


def _gemini_text(contents: list[Body]) -> str:
    return "".join(part["text"] for content in contents for part in content.get("parts", ()))


def _gemini_usage(tokens: Tokens) -> Body:
    return {
        "promptTokenCount": tokens.prompt,
        "candidatesTokenCount": tokens.reply,
        "thoughtsTokenCount": tokens.thought,
        "cachedContentTokenCount": tokens.cached,
        "totalTokenCount": tokens.prompt + tokens.reply + tokens.thought,
    }


def _gemini_answer(model: str, text: str, tokens: Tokens, cut: bool) -> Body:
    parts: list[Body] = [{"text": "Let me think about the role first.", "thought": True}]
    # A long text comes in several parts.
    parts += [{"text": text[: len(text) // 2]}, {"text": text[len(text) // 2 :]}]
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": parts if tokens.thought else parts[1:]},
                "finishReason": "MAX_TOKENS" if cut else "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": _gemini_usage(tokens),
        "modelVersion": model + VERSION_SUFFIX,
        "responseId": "stub",
    }


def _gemini_blocked(model: str, tokens: Tokens) -> Body:
    return {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": _gemini_usage(tokens),
        "modelVersion": model + VERSION_SUFFIX,
    }


def _gemini_error(status: int, name: str, message: str) -> Body:
    details: list[Body] = []
    if status == 429:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        details = [{"@type": kind, "retryDelay": f"{RETRY_SECONDS}s"}]
    return {"error": {"code": status, "message": message, "status": name, "details": details}}


def _openai_question(body: Body) -> Question:
    said = {message["role"]: str(message["content"]) for message in body["messages"]}
    limit = body.get("max_completion_tokens", body.get("max_tokens", 4096))
    return Question(
        system=said.get("system", ""),
        user=said["user"],
        max_output_tokens=int(limit),
        thinking_budget=0,
        structured="response_format" in body,
    )


def _openai_answer(model: str, text: str, tokens: Tokens, cut: bool) -> Body:
    message = {"role": "assistant", "content": text, "refusal": None}
    return _openai(model, message, "length" if cut else "stop", tokens)


def _openai_blocked(model: str, tokens: Tokens) -> Body:
    message = {"role": "assistant", "content": None, "refusal": "I cannot judge this."}
    return _openai(model, message, "stop", tokens)


def _openai(model: str, message: Body, finish: str, tokens: Tokens) -> Body:
    return {
        "id": "stub",
        "object": "chat.completion",
        "created": 0,
        "model": model + VERSION_SUFFIX,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": tokens.prompt,
            "completion_tokens": tokens.reply + tokens.thought,
            "total_tokens": tokens.prompt + tokens.reply + tokens.thought,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens_details": {"reasoning_tokens": tokens.thought},
        },
    }


def _openai_error(status: int, name: str, message: str) -> Body:
    return {"error": {"message": message, "type": name.lower(), "param": None, "code": str(status)}}


def _anthropic_question(body: Body) -> Question:
    system = body.get("system", "")
    if isinstance(system, list):
        system = "".join(block["text"] for block in cast("list[Body]", system))
    thinking = cast("Body", body.get("thinking") or {})
    return Question(
        system=str(system),
        user="".join(str(message["content"]) for message in body["messages"]),
        max_output_tokens=int(body["max_tokens"]),
        thinking_budget=int(thinking.get("budget_tokens", 0)),
    )


def _anthropic_answer(model: str, text: str, tokens: Tokens, cut: bool) -> Body:
    return _anthropic(model, text, "max_tokens" if cut else "end_turn", tokens)


def _anthropic_blocked(model: str, tokens: Tokens) -> Body:
    return _anthropic(model, "", "refusal", tokens)


def _anthropic(model: str, text: str, stop: str, tokens: Tokens) -> Body:
    said: list[Body] = [{"type": "text", "text": text}] if text else []
    thought: Body = {"type": "thinking", "thinking": "Let me think first.", "signature": "x"}
    return {
        "id": "stub",
        "type": "message",
        "role": "assistant",
        "model": model + VERSION_SUFFIX,
        "content": [thought, *said] if tokens.thought else said,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens.prompt - tokens.cached,
            "cache_read_input_tokens": tokens.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": tokens.reply + tokens.thought,
        },
    }


def _anthropic_error(status: int, name: str, message: str) -> Body:  # noqa: ARG001
    return {"type": "error", "error": {"type": name.lower(), "message": message}}


GEMINI = Dialect(
    question=_gemini_question,
    answer=_gemini_answer,
    blocked=_gemini_blocked,
    error=_gemini_error,
    key_header="x-goog-api-key",
)
OPENAI = Dialect(
    question=_openai_question,
    answer=_openai_answer,
    blocked=_openai_blocked,
    error=_openai_error,
    key_header="authorization",
)
ANTHROPIC = Dialect(
    question=_anthropic_question,
    answer=_anthropic_answer,
    blocked=_anthropic_blocked,
    error=_anthropic_error,
    key_header="x-api-key",
)
DIALECTS: Mapping[str, Dialect] = {"gemini": GEMINI, "openai": OPENAI, "anthropic": ANTHROPIC}
"""By the name that a provider's row in `coach.provider_table` gives its wire format."""
