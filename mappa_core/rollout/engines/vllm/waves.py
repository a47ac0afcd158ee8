"""Servers that share a few cores are used in waves, so that each computes large batches.

A decoding step costs a small model nearly the same for one sequence as for forty, and two servers
that compute at once wait for each other's threads. So requests go in waves: all that one agent
waits for enter together, and the next wave, of the agent that waits for most, begins when only
stragglers of the last ones are left.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

STRAGGLERS = 8
"""A wave may begin beside those left of the earlier ones where it is this many times as many."""


class WaveScheduler:
    """Lets requests through in waves of one agent each."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._waiting: Counter[str] = Counter()
        self._inside = 0
        self._wave = 0
        self._open_to: str | None = None
        """The agent of the wave, until its first request leaves."""

    @asynccontextmanager
    async def admitted(self, agent: str) -> AsyncGenerator[None]:
        """Inside, the agent's server has the cores, but for stragglers."""
        wave = await self._enter(agent)
        try:
            yield
        finally:
            async with self._condition:
                self._inside -= 1
                if wave == self._wave:
                    self._open_to = None
                self._condition.notify_all()

    async def _enter(self, agent: str) -> int:
        async with self._condition:
            self._waiting[agent] += 1
            try:
                await self._condition.wait_for(lambda: self._may_enter(agent))
            finally:
                self._waiting[agent] -= 1
                self._condition.notify_all()
            if self._open_to != agent:
                self._open_to = agent
                self._wave += 1
            self._inside += 1
            return self._wave

    def _may_enter(self, agent: str) -> bool:
        if agent == self._open_to:
            return True
        waiting = self._waiting[agent]
        most = waiting == max(self._waiting.values())
        return most and waiting >= STRAGGLERS * self._inside
