"""Requests go in waves of one agent, and no agent waits for ever."""

import asyncio
from collections.abc import Awaitable, Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core.rollout.engines.vllm.waves import STRAGGLERS, WaveScheduler


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Crowd:
    """Requests that stay inside until they are let out."""

    def __init__(self, scheduler: WaveScheduler) -> None:
        self._scheduler = scheduler
        self.inside: list[str] = []
        self._doors: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, agent: str, count: int = 1) -> None:
        self.tasks += [asyncio.create_task(self._one(agent)) for _ in range(count)]
        await settle()

    async def leave(self, agent: str, count: int = 1) -> None:
        for door in [door for who, door in self._doors if who == agent and not door.is_set()][
            :count
        ]:
            door.set()
        await settle()

    async def _one(self, agent: str) -> None:
        async with self._scheduler.admitted(agent):
            door = asyncio.Event()
            self._doors.append((agent, door))
            self.inside.append(agent)
            await door.wait()
            self.inside.remove(agent)


def scene(play: Callable[[Crowd], Awaitable[None]]) -> None:
    async def body() -> None:
        crowd = Crowd(WaveScheduler())
        await play(crowd)
        for task in crowd.tasks:
            task.cancel()
        await asyncio.gather(*crowd.tasks, return_exceptions=True)

    asyncio.run(body())


def test_another_agent_waits_until_only_stragglers_are_left() -> None:
    async def play(crowd: Crowd) -> None:
        await crowd.come("solver", 3)
        await crowd.come("executor", STRAGGLERS)
        assert crowd.inside == ["solver"] * 3
        await crowd.leave("solver", 1)
        assert "executor" not in crowd.inside
        await crowd.leave("solver", 1)
        assert crowd.inside.count("executor") == STRAGGLERS
        assert crowd.inside.count("solver") == 1

    scene(play)


def test_nobody_joins_a_wave_that_is_breaking_up() -> None:
    async def play(crowd: Crowd) -> None:
        await crowd.come("solver", 4)
        await crowd.come("solver", 1)
        assert len(crowd.inside) == 5
        await crowd.leave("solver", 1)
        await crowd.come("solver", 1)
        assert len(crowd.inside) == 4
        await crowd.leave("solver", 4)
        assert len(crowd.inside) == 1

    scene(play)


def test_whoever_waits_most_goes_next() -> None:
    async def play(crowd: Crowd) -> None:
        await crowd.come("solver", 1)
        await crowd.come("verifier", 2)
        await crowd.come("executor", 3)
        await crowd.leave("solver", 1)
        assert crowd.inside == ["executor"] * 3

    scene(play)


def test_a_cancelled_request_does_not_count() -> None:
    async def play(crowd: Crowd) -> None:
        await crowd.come("solver", 1)
        await crowd.come("executor", 2)
        await crowd.come("verifier", 1)
        for task in crowd.tasks[1:3]:
            task.cancel()
        await settle()
        await crowd.leave("solver", 1)
        assert crowd.inside == ["verifier"]

    scene(play)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=40))
def test_every_request_gets_through(requests: list[tuple[str, int]]) -> None:
    async def body() -> int:
        scheduler, done = WaveScheduler(), 0

        async def one(agent: str, steps: int) -> None:
            nonlocal done
            async with scheduler.admitted(agent):
                for _ in range(steps):
                    await asyncio.sleep(0)
            done += 1

        await asyncio.wait_for(asyncio.gather(*(one(*request) for request in requests)), 10)
        return done

    assert asyncio.run(body()) == len(requests)
