"""How fast a provider is asked: slots that shrink when it complains, and its rates per minute."""

import asyncio
from collections import deque
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
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Calls allowed at once, now."""
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[int]:
        """Hold a slot inside the block, first come first served; yields the era it began in."""
        await self._turn()
        # Through the loop, so that this call is on its way before the next is prepared.
        asyncio.get_running_loop().call_soon(self._wake)
        try:
            yield self._era
        finally:
            self._taken -= 1
            self._wake()

    async def _turn(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._wake()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._taken -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        """Hand a free slot to the first who waits; a woken one has its slot already."""
        while self._waiting and self._taken < self.limit:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._taken += 1
                waiter.set_result(None)
                return

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
        self._requests = AsyncLimiter(requests, MINUTE_SECONDS) if requests else None
        self._tokens = AsyncLimiter(tokens, MINUTE_SECONDS) if tokens else None

    async def acquire(self, tokens: int) -> None:
        """Wait until one more request of about `tokens` tokens is within the rates."""
        if self._requests:
            await self._requests.acquire()
        if self._tokens:
            await self._tokens.acquire(min(tokens, self._tokens.max_rate))
