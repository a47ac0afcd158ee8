"""A lock for many requests at once, or one change of weights: never both."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class ReadWriteLock:
    """Is held by many readers together or by one writer alone; writers go first."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._readers = 0
        self._writers = 0
        """Those that wait, too."""
        self._writing = False

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """Inside, no writer is at work."""
        async with self._condition:
            await self._condition.wait_for(lambda: self._writers == 0)
            self._readers += 1
        try:
            yield
        finally:
            async with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """Inside, no reader and no other writer is at work."""
        async with self._condition:
            self._writers += 1
            try:
                await self._condition.wait_for(lambda: not self._readers and not self._writing)
            except asyncio.CancelledError:
                self._writers -= 1
                self._condition.notify_all()
                raise
            self._writing = True
        try:
            yield
        finally:
            async with self._condition:
                self._writing = False
                self._writers -= 1
                self._condition.notify_all()
