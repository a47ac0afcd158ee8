"""Many requests at once, or one change of weights: never both."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Gate:
    """Lets requests through together and a change through alone; changes go first."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._requests = 0
        self._changes = 0
        self._changing = False

    @asynccontextmanager
    async def request(self) -> AsyncGenerator[None]:
        """Inside, the weights stay as they are."""
        async with self._condition:
            await self._condition.wait_for(lambda: self._changes == 0)
            self._requests += 1
        try:
            yield
        finally:
            async with self._condition:
                self._requests -= 1
                self._condition.notify_all()

    @asynccontextmanager
    async def change(self) -> AsyncGenerator[None]:
        """Inside, no request is under way."""
        async with self._condition:
            self._changes += 1
            try:
                await self._condition.wait_for(lambda: not self._requests and not self._changing)
            except asyncio.CancelledError:
                self._changes -= 1
                self._condition.notify_all()
                raise
            self._changing = True
        try:
            yield
        finally:
            async with self._condition:
                self._changing = False
                self._changes -= 1
                self._condition.notify_all()
