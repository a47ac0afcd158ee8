"""How fast a provider is asked, and when a failed call is made again."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiolimiter import AsyncLimiter
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_exponential,
    wait_random_exponential,
)

from mappa_core.coach.providers.provider import Passing

SHRINK = 0.7
MINUTE_SECONDS = 60.0
# Half of 0.5, 1, 2 ... 30 seconds is sure, half is drawn: callers that failed together spread out.
_BACKOFF = wait_exponential(multiplier=0.25, max=15) + wait_random_exponential(
    multiplier=0.25, max=15
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Measures and makes waits; tests bring their own."""

    now: Callable[[], float] = time.monotonic
    """Seconds."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class CallLimit:
    """Lets at most so many calls run at once.

    There are fewer after a 429, and one more per round of successes.
    """

    def __init__(self, most: int) -> None:
        self._most = self._permits = most
        self._limit = float(most)
        self._free = asyncio.Semaphore(most)
        self._era = 0

    @property
    def limit(self) -> int:
        """Calls allowed at once, now."""
        return int(self._limit)

    @asynccontextmanager
    async def call(self) -> AsyncGenerator[int]:
        """Hold a permit inside the block, first come first served; yields the era it began in."""
        await self._free.acquire()
        try:
            yield self._era
        finally:
            if self._permits > self.limit:
                self._permits -= 1
            else:
                self._free.release()

    def slow_down(self, era: int) -> None:
        """Shrink after a complaint about a call of `era`; all complaints of one era are one."""
        if era == self._era:
            self._era += 1
            self._limit = max(1.0, self._limit * SHRINK)

    def speed_up(self) -> None:
        """Grow a little after a call that succeeded."""
        self._limit = min(float(self._most), self._limit + 1 / self._limit)
        while self._permits < self.limit:
            self._permits += 1
            self._free.release()


class Rates:
    """Keeps to the provider's requests and tokens a minute; None is no limit."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._requests = AsyncLimiter(requests, MINUTE_SECONDS) if requests else None
        self._tokens = AsyncLimiter(tokens, MINUTE_SECONDS) if tokens else None

    async def acquire(self, tokens: int) -> None:
        """Wait until one more request of about `tokens` tokens is within the rates."""
        if self._requests:
            await self._requests.acquire()
        if self._tokens:
            await self._tokens.acquire(min(tokens, self._tokens.max_rate))


def retrying(clock: Clock, deadline: Callable[[], float]) -> AsyncRetrying:
    """Make a call again while it fails with `Passing` and may begin before the deadline.

    The deadline is asked for after each failure. What is returned takes the call and its
    arguments, and raises the last `ProviderError`.
    """
    return AsyncRetrying(
        sleep=clock.sleep,
        retry=retry_if_exception_type(Passing),
        wait=_pause_seconds,
        stop=lambda state: clock.now() + state.upcoming_sleep > deadline(),
        reraise=True,
    )


def _pause_seconds(state: RetryCallState) -> float:
    """Jittered backoff, but at least what the provider wishes."""
    backoff = _BACKOFF(state)
    error = state.outcome.exception() if state.outcome else None
    wish = error.retry_after_seconds if isinstance(error, Passing) else None
    return max(backoff, wish + backoff * 0.1) if wish else backoff
