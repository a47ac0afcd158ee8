"""How fast a provider is asked: slots that shrink when it complains, and its rates per minute."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiolimiter import AsyncLimiter

SHRINK = 0.7
MINUTE_SECONDS = 60.0


class Slots:
    """At most so many calls at once: fewer after a 429, one more per round of successes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._taken = 0
        self._era = 0
        self._freed = asyncio.Condition()

    @property
    def limit(self) -> int:
        """Calls allowed at once, now."""
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[int]:
        """Hold a slot inside the block; yields the era, which `slow_down` wants back."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._taken < self.limit)
            self._taken += 1
        try:
            yield self._era
        finally:
            async with self._freed:
                self._taken -= 1
                self._freed.notify(max(1, self.limit - self._taken))

    def slow_down(self, era: int) -> None:
        """The provider complained about a call of `era`; all complaints of one era are one."""
        if era == self._era:
            self._era += 1
            self._limit = max(1.0, self._limit * SHRINK)

    def speed_up(self) -> None:
        """A call succeeded."""
        self._limit = min(float(self._most), self._limit + 1 / self._limit)


class Rates:
    """The provider's requests and tokens a minute; None is no limit."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._requests = requests and AsyncLimiter(requests, MINUTE_SECONDS)
        self._tokens = tokens and AsyncLimiter(tokens, MINUTE_SECONDS)

    async def acquire(self, tokens: int) -> None:
        """Wait until one more request of about `tokens` tokens is within the rates."""
        if self._requests:
            await self._requests.acquire()
        if self._tokens:
            await self._tokens.acquire(min(tokens, self._tokens.max_rate))
