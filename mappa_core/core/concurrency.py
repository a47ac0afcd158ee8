"""Runs several things at once, and work in threads; a caller goes on when all of it has ended.

together   ─┬─ a ─▶ result
            ├─ b ─▶ fails ─▶ a and c are cancelled, and have ended when the error is raised
            └─ c
all_ended   as `together`, and nothing is cancelled for another's failure
beside      ──── goes on meanwhile; what is left of it at the end is cancelled, or waited for
in_thread  ──── cancelled ─▶ the thread ends first
InOneGo    ─┬─ a ─▶ thread: [a]             what piles up meanwhile is done together
            ├─ b ─▶ waits ─▶ thread: [b, c]
            └─ c ─▶ waits ┘

What outlives its run would write into it when another process may have it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, ParamSpec, TypeVar

from mappa_core.core.errors import Unreachable

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


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


@asynccontextmanager
async def beside(
    *, waits: bool = False
) -> AsyncGenerator[Callable[[Coroutine[object, object, None]], None]]:
    """Give a function that starts work and does not wait for it.

    What is left when the block ends is cancelled, or waited for. Where the block did not fail
    itself, the first error of the work is raised then.
    """
    tasks: list[asyncio.Task[None]] = []

    def start(work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        tasks.append(task)
        task.add_done_callback(forget)

    def forget(task: asyncio.Task[None]) -> None:
        # A task that has ended keeps the context in which it was started.
        if not task.cancelled() and task.exception() is None:
            tasks.remove(task)

    try:
        yield start
    finally:
        for task in () if waits else tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def all_ended(
    work: Iterable[Callable[[], Coroutine[object, object, T]]], *, at_once: int
) -> list[T]:
    """The results in the order of `work`, at most so many under way at a time.

    If one fails the others go on; the first error is raised when all have ended. What is cancelled
    before its place is free was never called: a coroutine made before would warn that it was never
    awaited.
    """
    places = asyncio.Semaphore(at_once)

    async def placed(begin: Callable[[], Coroutine[object, object, T]]) -> T:
        async with places:
            return await begin()

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


class InOneGo(Generic[A, T]):
    """Does in a thread what callers ask for, all at once what piled up since it last began.

    To be used from one event loop.
    """

    def __init__(self, work: Callable[[Sequence[A]], Sequence[T]]) -> None:
        """Let `work` give a result for each thing it is asked for, or do none of them."""
        self._work = work
        self._waiting: dict[asyncio.Future[T], A] = {}
        self._going: asyncio.Task[None] | None = None

    async def __call__(self, asked: A) -> T:
        """The result for `asked`; where this is cancelled, `asked` is left, or ends first.

        Raises:
            Exception: What `work` raises of it alone; of `Unreachable`, what it raises of all.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[done] = asked
        if self._going is None:
            self._going = asyncio.ensure_future(self._go())
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if self._waiting.pop(done, None) is None:
                await asyncio.gather(done, return_exceptions=True)
            raise

    async def _go(self) -> None:
        going: dict[asyncio.Future[T], A] = {}
        try:
            while self._waiting:
                going, self._waiting = self._waiting, {}
                outcomes = await in_thread(self._outcomes, tuple(going.values()))
                for done, outcome in zip(going, outcomes, strict=True):
                    if isinstance(outcome, Exception):
                        done.set_exception(outcome)
                    else:
                        done.set_result(outcome)
        finally:
            self._going = None
            for done in (*going, *self._waiting):
                done.cancel()

    def _outcomes(self, asked: Sequence[A]) -> Sequence[T | Exception]:
        try:
            return self._work(asked)
        except Unreachable as error:
            return [error] * len(asked)
        except Exception as error:  # noqa: BLE001 (its caller raises it)
            if len(asked) == 1:
                return [error]
            # One of them is at fault, and only its caller should hear of it.
            return [outcome for each in asked for outcome in self._outcomes((each,))]
