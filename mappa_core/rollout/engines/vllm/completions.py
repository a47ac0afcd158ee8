"""One action as vLLM's completions endpoint is asked for it, and as it answers."""

import time
from collections.abc import Sequence
from itertools import chain

from pydantic import BaseModel

from mappa_core.core.records.episodes import Completion, FinishReason, GenerationRequest
from mappa_core.models.serving.client import ServerDied, VllmClient
from mappa_core.rollout.engines.base import sampling_within

PATH = "/v1/completions"


class _Logprobs(BaseModel):
    token_logprobs: tuple[float, ...]


class _Choice(BaseModel):
    token_ids: tuple[int, ...]
    logprobs: _Logprobs
    finish_reason: FinishReason | None = None


class _Event(BaseModel):
    """What is read of a part of vLLM's answer: some more tokens."""

    choices: tuple[_Choice]


def completion_body(
    request: GenerationRequest, *, model: str, end_token_ids: Sequence[int], max_model_length: int
) -> dict[str, object]:
    """Write the request of an action to a server that has its policy under the name `model`.

    Raises:
        EngineError: The prompt leaves no room for an answer.
    """
    sampling = sampling_within(request, max_model_length)
    return {
        "model": model,
        "prompt": request.prompt_token_ids,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # Said, although they change nothing: a server that reads the model's generation_config
        # would have other ones.
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": request.seed,
        "stop_token_ids": end_token_ids,
        # The sampled token's own log-probability, in the distribution it is drawn from.
        "logprobs": 0,
        # Tokens that come say that the server works, however long all of them take.
        "stream": True,
        "return_token_ids": True,
        # In the place of their texts: our own servers load no tokenizer.
        "return_tokens_as_token_ids": True,
    }


async def completed(server: VllmClient, body: dict[str, object]) -> Completion:
    """Sample what `body` asks for.

    Raises:
        ServerDied: No answer will come, or it breaks off.
        EngineError: The server lives and refuses.
    """
    started = time.perf_counter()
    events = await server.events(PATH, body)
    parts = [_Event.model_validate(event).choices[0] for event in events]
    reason = parts[-1].finish_reason if parts else None
    if reason is None:
        raise ServerDied(f"an answer without an end at {PATH}")
    return Completion(
        token_ids=tuple(chain.from_iterable(part.token_ids for part in parts)),
        logprobs=tuple(chain.from_iterable(part.logprobs.token_logprobs for part in parts)),
        finish_reason=reason,
        seconds=time.perf_counter() - started,
    )
