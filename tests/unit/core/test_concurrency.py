"""Nothing that was begun outlives the caller that waits for it."""

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from functools import partial
from threading import Event
from weakref import ref

import pytest

from mappa_core.core.concurrency import InOneGo, all_ended, beside, in_thread, together
from mappa_core.core.errors import StoreError, Unreachable


class Work:
    """Pieces of work that end when they are told to, or fail."""

    def __init__(self) -> None:
        self.under_way = 0
        self.begun = asyncio.Event()

    async def waits(self) -> None:
        self.under_way += 1
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            # One that is told to end may take a while over it.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.under_way -= 1

    async def fails(self) -> None:
        await self.begun.wait()
        raise LookupError("one of them") from OSError("its cause")


def test_results_come_in_order() -> None:
    async def later(value: int, turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return value

    assert asyncio.run(together(later(n, 9 - n) for n in range(3))) == [0, 1, 2]
    assert asyncio.run(together(later(n, n) for n in range(0))) == []


def test_the_others_have_ended_when_one_fails() -> None:
    async def body() -> tuple[int, BaseException | None]:
        work = Work()
        with pytest.raises(LookupError, match="one of them") as caught:
            await together([work.waits(), work.fails(), work.waits()])
        return work.under_way, caught.value.__cause__

    under_way, cause = asyncio.run(body())
    assert under_way == 0
    assert isinstance(cause, OSError)


def test_what_nobody_waits_for_has_ended_with_the_block() -> None:
    async def body() -> int:
        work = Work()
        async with beside() as begin:
            begin(work.waits())
            await work.begun.wait()
            assert work.under_way == 1
        return work.under_way

    assert asyncio.run(body()) == 0


def test_what_has_ended_is_not_kept_until_the_block_ends() -> None:
    begun: list[ref[asyncio.Task[None]]] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        begun.append(ref(task))

    async def body() -> None:
        async with beside() as begin:
            begin(work())
            await asyncio.sleep(0.01)
            gc.collect()
            assert [each() for each in begun] == [None]

    asyncio.run(body())


def test_an_error_beside_a_block_is_raised_at_its_end_unless_the_block_failed() -> None:
    async def body(error: Exception | None) -> None:
        work = Work()
        async with beside() as begin:
            begin(work.waits())
            begin(work.fails())
            await work.begun.wait()
            await asyncio.sleep(0.01)
            if error is not None:
                raise error

    with pytest.raises(LookupError, match="one of them"):
        asyncio.run(body(None))
    with pytest.raises(OSError, match="the block's"):
        asyncio.run(body(OSError("the block's")))


def test_all_have_ended_when_it_is_cancelled() -> None:
    async def body() -> int:
        work = Work()
        task = asyncio.create_task(together([work.waits(), work.waits()]))
        await work.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return work.under_way

    assert asyncio.run(body()) == 0


def test_what_waits_for_its_place_is_not_begun_when_all_is_cancelled() -> None:
    asked: list[str] = []

    def begin(name: str, work: Work) -> Coroutine[object, object, None]:
        asked.append(name)
        return work.waits()

    async def body() -> int:
        work = Work()
        both = (partial(begin, name, work) for name in ("first", "second"))
        task = asyncio.create_task(all_ended(both, at_once=1))
        await work.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return work.under_way

    assert asyncio.run(body()) == 0
    assert asked == ["first"]


def test_a_cancelled_wait_lets_its_thread_finish() -> None:
    begun, go_on, written = Event(), Event(), list[str]()

    def write() -> None:
        begun.set()
        go_on.wait()
        written.append("a row")

    async def body() -> list[str]:
        task = asyncio.create_task(in_thread(write))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return written.copy()

    assert asyncio.run(body()) == ["a row"]


def test_what_a_thread_raises_is_raised_even_what_a_future_cannot_hold() -> None:
    def refuses() -> None:
        raise LookupError("refused")

    with pytest.raises(LookupError, match="refused"):
        asyncio.run(in_thread(refuses))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(in_thread(next, iter(())), timeout=60))
    assert asyncio.run(in_thread(int, "12", base=3)) == 5


class Ledger:
    """Counts what it is given at once; refuses 13, and everything while it is away."""

    def __init__(self) -> None:
        self.goes: list[tuple[int, ...]] = []
        self.away = False
        self.open = Event()
        self.open.set()

    def double(self, asked: Sequence[int]) -> Sequence[int]:
        self.open.wait(5)
        if self.away:
            raise Unreachable("away")
        if 13 in asked:
            raise StoreError("13 is refused")
        self.goes.append(tuple(asked))
        return [2 * each for each in asked]


async def asked_of(ledger: Ledger, *numbers: int) -> list[int | BaseException]:
    in_one_go = InOneGo(ledger.double)
    return await asyncio.gather(*map(in_one_go, numbers), return_exceptions=True)


def test_what_piles_up_is_done_in_one_go() -> None:
    ledger = Ledger()
    assert asyncio.run(asked_of(ledger, *range(20, 99))) == [*range(40, 198, 2)]
    assert ledger.goes == [tuple(range(20, 99))]


def test_only_the_one_at_fault_hears_of_it() -> None:
    ledger = Ledger()
    one, fault, other = asyncio.run(asked_of(ledger, 1, 13, 2))
    assert (one, other) == (2, 4)
    assert isinstance(fault, StoreError)


def test_an_outage_is_heard_of_by_all_without_a_try_for_each() -> None:
    ledger = Ledger()
    ledger.away = True
    outcomes = asyncio.run(asked_of(ledger, 1, 2))
    assert [str(outcome) for outcome in outcomes] == ["away", "away"]


def test_a_cancelled_call_ends_with_its_go_or_is_left() -> None:
    ledger = Ledger()

    async def body() -> None:
        in_one_go = InOneGo(ledger.double)
        ledger.open.clear()
        begun = asyncio.ensure_future(in_one_go(1))
        await asyncio.sleep(0.05)
        waiting, other = asyncio.ensure_future(in_one_go(2)), asyncio.ensure_future(in_one_go(3))
        await asyncio.sleep(0)
        begun.cancel()
        waiting.cancel()
        await asyncio.sleep(0.05)
        assert waiting.cancelled()
        assert not begun.done()
        ledger.open.set()
        assert await other == 6
        assert begun.cancelled()

    asyncio.run(body())
    assert ledger.goes == [(1,), (3,)]


@pytest.mark.parametrize("fails", [False, True])
def test_what_must_end_is_waited_for(fails: bool) -> None:
    ended: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        ended.append("slow")

    async def scenario() -> None:
        async with beside(waits=True) as begin:
            begin(slow())
            if fails:
                raise ArithmeticError

    if fails:
        with pytest.raises(ArithmeticError):
            asyncio.run(scenario())
    else:
        asyncio.run(scenario())
    assert ended == ["slow"]
