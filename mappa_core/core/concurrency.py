"""Runs several things at once, and work in threads; a caller goes on when all of it has ended.

together   ─┬─ a ─▶ result
            ├─ b ─▶ fails ─▶ a and c are cancelled, and have ended when the error is raised
            └─ c
all_ended   as `together`, and nothing is cancelled for another's failure
in_thread  ──── cancelled ─▶ the thread ends first

What outlives its run would write into it when another process may have it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def together(work: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """The results in the order of `work`.

    If one fails, or this is cancelled, the others are cancelled; the first error is raised when
    all have ended.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def all_ended(work: Iterable[Coroutine[object, object, T]], *, at_once: int) -> list[T]:
    """The results in the order of `work`, at most so many under way at a time.

    If one fails the others go on; the first error is raised when all have ended.
    """
    places = asyncio.Semaphore(at_once)

    async def placed(each: Coroutine[object, object, T]) -> T:
        async with places:
            return await each

    outcomes = await asyncio.gather(*(placed(each) for each in work), return_exceptions=True)
    return [result_of(outcome) for outcome in outcomes]


def result_of(outcome: T | BaseException) -> T:
    """One of the outcomes of `asyncio.gather(..., return_exceptions=True)`; raised if an error."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`; where this is cancelled, `work` ends before the cancellation.

    Raises:
        RuntimeError: `work` raised `StopIteration`, as in a coroutine (PEP 479); a future cannot
            hold one, and would be waited for without end.
    """

    def ended() -> T:
        try:
            return work(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("StopIteration was raised in a thread") from error

    thread = asyncio.ensure_future(asyncio.to_thread(ended))
    try:
        return await asyncio.shield(thread)
    finally:
        await asyncio.gather(thread, return_exceptions=True)
