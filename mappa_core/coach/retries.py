"""When a failed call is made again: jittered backoff, the provider's own wish, one deadline.

Every call passes here, so this is a loop and no library: setting one up per call costs more than
all the rest of a call (tenacity: 0.15 ms).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TypeVar

from mappa_core.coach.providers.provider import Passing

T = TypeVar("T")

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """The clock that waits are measured by; tests bring their own."""

    now: Callable[[], float]
    """Seconds, monotonic."""
    sleep: Callable[[float], Awaitable[None]]


async def repeated(
    call: Callable[[], Awaitable[T]], *, deadline: Callable[[], float], time: Time, jitter: Random
) -> T:
    """The result of `call`, made again while it fails with `Passing` and there is time.

    Args:
        call: Makes one call.
        deadline: When the last call may begin, on `time`'s clock; asked after each failure.
        time: Clock and sleep.
        jitter: Spreads callers that failed together.

    Raises:
        ProviderError: The last failure.
    """
    for failures in count(1):
        try:
            return await call()
        except Passing as error:
            pause = pause_seconds(failures, error.retry_after_seconds or 0.0, jitter)
            if time.now() + pause > deadline():
                raise
        await time.sleep(pause)
    raise AssertionError("the loop ends by itself")


def pause_seconds(failures: int, wished_seconds: float, jitter: Random) -> float:
    """How long to wait after so many failures, at least what the provider wishes."""
    grown = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(failures - 1, MOST_DOUBLINGS))
    backoff = grown * jitter.uniform(0.5, 1.0)
    return max(backoff, wished_seconds + backoff * 0.1 if wished_seconds else 0.0)
