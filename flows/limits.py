"""What all runs of a Prefect server share: at most so many at once, by its global limits.

    prefect global-concurrency-limit create mappa-coach --limit 64

A run looks once, when it starts, which of the limits there are. One that is not there costs
nothing; one that is costs two calls of Prefect's API each time it is taken.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from prefect.client.orchestration import PrefectClient
from prefect.concurrency.asyncio import concurrency
from prefect.exceptions import ObjectNotFound

from flows.waiting import prefect_api

Limit = Literal["mappa-engine", "mappa-sandbox", "mappa-coach"]
"""Actions being generated, programs and tools running, episodes being scored."""

_there: ContextVar[frozenset[str]] = ContextVar("global limits", default=frozenset())


@asynccontextmanager
async def global_limits() -> AsyncGenerator[None]:
    """Let what runs inside the block keep to the limits that there are now."""
    async with prefect_api() as client:
        there = frozenset([name for name in get_args(Limit) if await _exists(client, name)])
    token = _there.set(there)
    try:
        yield
    finally:
        _there.reset(token)


@asynccontextmanager
async def limited(limit: Limit) -> AsyncGenerator[None]:
    """Wait for a place within `limit` and hold it inside the block."""
    if limit not in _there.get():
        yield
        return
    # Not strict: a limit that is deleted in the meantime limits nothing any more.
    async with concurrency(limit, strict=False):
        yield


async def _exists(client: PrefectClient, name: str) -> bool:
    try:
        await client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        return False
    return True
