"""When a failed call is made again: jittered backoff, the provider's own wish, one deadline."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from mappa_core.adapters.llm_coach.provider import Passing

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """The clock that waits are measured by; tests bring their own."""

    now: Callable[[], float]
    """Seconds, monotonic."""
    sleep: Callable[[float], Awaitable[None]]


def retrying(deadline: Callable[[], float], time: Time, jitter: Random) -> AsyncRetrying:
    """Repeats a call while it fails with `Passing` and the next one would begin in time.

    Args:
        deadline: When to give up, on `time`'s clock; asked again after each failure.
        time: Clock and sleep.
        jitter: Spreads callers that failed together.
    """

    def wait(state: RetryCallState) -> float:
        grown = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(state.attempt_number - 1, 16))
        backoff = grown * jitter.uniform(0.5, 1.0)
        return max(backoff, _wished(state) + backoff * 0.1 if _wished(state) else 0.0)

    def stop(state: RetryCallState) -> bool:
        return time.now() + state.upcoming_sleep > deadline()

    return AsyncRetrying(
        retry=retry_if_exception_type(Passing),
        wait=wait,
        stop=stop,
        sleep=time.sleep,
        reraise=True,
    )


def _wished(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    return (error.retry_after_seconds or 0.0) if isinstance(error, Passing) else 0.0
