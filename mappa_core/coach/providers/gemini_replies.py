"""What Gemini answers: texts without thoughts, token counts, blocks, errors."""

import httpx2
from google.auth.exceptions import GoogleAuthError
from google.genai import types
from google.genai.errors import APIError
from pydantic import BaseModel, Field

from mappa_core.coach.budget import Usage
from mappa_core.coach.providers.provider import (
    Final,
    Passing,
    ProviderError,
    ProviderReply,
    retry_after,
    safe,
    status_error,
)

_BLOCKED = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"}
)


class CacheGone(Passing):
    """Says that the provider no longer has the context cache it was pointed at."""


class _Detail(BaseModel):
    type: str = Field(default="", alias="@type")
    delay: str | None = Field(default=None, alias="retryDelay")


class _Error(BaseModel):
    details: tuple[_Detail, ...] = ()


class _Failed(BaseModel):
    """The body of an answer that is none."""

    error: _Error = _Error()


def read_answer(answer: types.GenerateContentResponse) -> ProviderReply:
    """Read the reply in an answer.

    Raises:
        Final: Prompt or reply were blocked.
    """
    usage = _usage(answer.usage_metadata)
    feedback = answer.prompt_feedback
    if feedback is not None and feedback.block_reason:
        reason = feedback.block_reason.value
        raise Final("blocked", f"the prompt was blocked: {reason}", usage=usage)
    if not answer.candidates:
        raise Final("blocked", "the answer has no candidate", usage=usage)
    candidate = answer.candidates[0]
    if candidate.finish_reason and candidate.finish_reason.value in _BLOCKED:
        reason = candidate.finish_reason.value
        raise Final("blocked", f"the reply was blocked: {reason}", usage=usage)
    parts = (candidate.content.parts if candidate.content else None) or ()
    return ProviderReply(
        text="".join(part.text for part in parts if part.text and not part.thought),
        usage=usage,
        model_version=answer.model_version or "unknown",
        cut=candidate.finish_reason is types.FinishReason.MAX_TOKENS,
    )


def provider_error(
    error: APIError | GoogleAuthError | httpx2.HTTPError | ValueError,
    secrets: tuple[str, ...],
    what: str = "",
) -> ProviderError:
    """Say what a failed call means: whether it can pass, and when.

    The message begins with `what` failed and has none of the `secrets`.
    """
    match error:
        case APIError():
            return _refusal(error, secrets, what)
        case GoogleAuthError():
            detail = safe(f"no access token: {error}", *secrets)
            return Passing("error", detail) if error.retryable else Final("refused", detail)
        case httpx2.TimeoutException():
            return Passing("timeout", f"{what}the connection timed out")
        case httpx2.HTTPError():
            return Passing("error", safe(f"{what}{type(error).__name__}: {error}", *secrets))
        case _:
            detail = f"{what}the answer is not what Gemini sends: {error}"
            return Passing("error", safe(detail, *secrets))


def _refusal(error: APIError, secrets: tuple[str, ...], what: str) -> ProviderError:
    message = error.message or "no message"
    detail = safe(f"{what}{error.status or ''} {message}", *secrets)
    if error.code in (403, 404) and "CachedContent" in message:
        return CacheGone("error", f"HTTP {error.code}: {detail}")
    return status_error(error.code or 500, detail, _retry_after(error))


def _retry_after(error: APIError) -> float | None:
    """What `RetryInfo` or the header asks for."""
    try:
        details = _Failed.model_validate(error.details).error.details
    except ValueError:
        details = ()
    for detail in details:
        if detail.type.endswith("google.rpc.RetryInfo") and detail.delay is not None:
            return retry_after(detail.delay.removesuffix("s"))
    sent = error.response
    return (
        retry_after(sent.headers.get("retry-after")) if isinstance(sent, httpx2.Response) else None
    )


def _usage(counted: types.GenerateContentResponseUsageMetadata | None) -> Usage | None:
    if counted is None:
        return None
    return Usage(
        prompt=counted.prompt_token_count or 0,
        cached=counted.cached_content_token_count or 0,
        reply=counted.candidates_token_count or 0,
        thought=counted.thoughts_token_count or 0,
    )
