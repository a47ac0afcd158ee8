"""What Gemini answers: texts without thoughts, token counts, blocks, errors.

Only the fields that are used are named; whatever else Google adds is no reason to lose a score.
"""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from mappa_core.coach.prices import Usage
from mappa_core.coach.providers.provider import Final, ProviderReply, retry_after

_BLOCKED = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"}
)


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class _Part(_Wire):
    text: str | None = None
    thought: bool | None = None


class _Content(_Wire):
    parts: tuple[_Part, ...] | None = None


class _Candidate(_Wire):
    content: _Content | None = None
    finish_reason: str | None = None


class _Feedback(_Wire):
    block_reason: str | None = None


class _Counted(_Wire):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class _Response(_Wire):
    candidates: tuple[_Candidate, ...] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Counted | None = None
    model_version: str | None = None


class _Detail(_Wire):
    model_config = ConfigDict(alias_generator=None, extra="allow", frozen=True)

    def wish(self) -> float | None:
        """Seconds until the next call, where this says so."""
        said = self.model_extra or {}
        delay = said.get("retryDelay")
        if str(said.get("@type", "")).endswith("google.rpc.RetryInfo") and isinstance(delay, str):
            return retry_after(delay.removesuffix("s"))
        return None


class ApiError(_Wire):
    """The body of an answer that is none."""

    status: str = ""
    message: str = "no message"
    details: tuple[_Detail, ...] = ()

    @property
    def retry_after_seconds(self) -> float | None:
        """What `RetryInfo` asks for."""
        return next((wish for d in self.details if (wish := d.wish()) is not None), None)


class _Failed(_Wire):
    error: ApiError


def read_error(body: bytes) -> ApiError:
    """An error's body; a page of HTML is its own message."""
    try:
        return _Failed.model_validate_json(body).error
    except ValueError:
        return ApiError(message=body.decode(errors="replace") or "no message")


def read_answer(body: bytes) -> ProviderReply:
    """The reply in an answer's body.

    Raises:
        Final: Prompt or reply were blocked.
        ValueError: This is not what Gemini sends.
    """
    response = _Response.model_validate_json(body)
    usage = _usage(response.usage_metadata)
    if response.prompt_feedback is not None and response.prompt_feedback.block_reason:
        reason = response.prompt_feedback.block_reason
        raise Final("blocked", f"the prompt was blocked: {reason}", usage=usage)
    if not response.candidates:
        raise Final("blocked", "the answer has no candidate", usage=usage)
    candidate = response.candidates[0]
    if candidate.finish_reason in _BLOCKED:
        raise Final("blocked", f"the reply was blocked: {candidate.finish_reason}", usage=usage)
    parts = (candidate.content.parts if candidate.content else None) or ()
    return ProviderReply(
        text="".join(part.text for part in parts if part.text and not part.thought),
        usage=usage,
        model_version=response.model_version or "unknown",
    )


def _usage(counted: _Counted | None) -> Usage | None:
    if counted is None:
        return None
    return Usage(
        prompt=counted.prompt_token_count or 0,
        cached=counted.cached_content_token_count or 0,
        reply=counted.candidates_token_count or 0,
        thought=counted.thoughts_token_count or 0,
    )
