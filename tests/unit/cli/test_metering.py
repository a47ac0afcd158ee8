"""What is metered does as before, and its time is written down."""

import asyncio
import time

import pytest

from mappa_cli.benches.metering import Meter, with_methods


class Adapter:
    """Works for a moment, in a thread's way and in a coroutine's."""

    name = "an adapter"

    def update(self, number: int) -> int:
        time.sleep(0.02)
        return number + 1

    async def score(self, number: int) -> int:
        await asyncio.sleep(0.02)
        if number < 0:
            raise ValueError("negative")
        return number + 1


def test_replaced_methods_are_timed_and_the_others_are_the_adapters() -> None:
    meter, adapter = Meter(), Adapter()
    metered = with_methods(
        adapter, update=meter.timed(adapter.update), score=meter.timed(adapter.score)
    )
    assert (metered.update(1), metered.name) == (2, "an adapter")
    assert meter.busy_seconds() >= 0.02

    async def together() -> list[int]:
        return await asyncio.gather(*(metered.score(number) for number in range(3)))

    assert asyncio.run(together()) == [1, 2, 3]
    assert len(meter.busy) == 4
    assert meter.busy_seconds() < sum(ended - started for started, ended in meter.busy)


def test_time_that_ends_in_an_error_counts() -> None:
    meter = Meter()
    with pytest.raises(ValueError, match="negative"):
        asyncio.run(meter.timed(Adapter().score)(-1))
    assert meter.busy_seconds() >= 0.02
