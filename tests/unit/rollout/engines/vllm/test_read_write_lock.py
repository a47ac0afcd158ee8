"""Requests run together; a change runs alone and goes first."""

import asyncio

from mappa_core.rollout.engines.vllm.read_write_lock import ReadWriteLock


def test_requests_overlap_and_a_change_waits_for_them() -> None:
    async def scenario() -> list[str]:
        lock, log, release = ReadWriteLock(), list[str](), asyncio.Event()

        async def request(name: str) -> None:
            async with lock.reading():
                log.append(f"{name} in")
                await release.wait()
                log.append(f"{name} out")

        async def change() -> None:
            async with lock.writing():
                log.append("change")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(request("a"))
            tasks.create_task(request("b"))
            await asyncio.sleep(0.01)
            tasks.create_task(change())
            await asyncio.sleep(0.01)
            tasks.create_task(request("late"))
            await asyncio.sleep(0.01)
            release.set()
        return log

    assert asyncio.run(scenario()) == [
        *("a in", "b in", "a out", "b out"),
        *("change", "late in", "late out"),
    ]


def test_changes_run_one_after_the_other() -> None:
    async def scenario() -> int:
        lock, inside, most = ReadWriteLock(), 0, 0

        async def change() -> None:
            nonlocal inside, most
            async with lock.writing():
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

        await asyncio.gather(*(change() for _ in range(5)))
        return most

    assert asyncio.run(scenario()) == 1


def test_a_change_given_up_while_waiting_lets_requests_through() -> None:
    async def scenario() -> None:
        lock, release = ReadWriteLock(), asyncio.Event()

        async def long_request() -> None:
            async with lock.reading():
                await release.wait()

        async def change() -> None:
            async with lock.writing():
                raise AssertionError("a request is under way")

        holder = asyncio.create_task(long_request())
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(change())
        await asyncio.sleep(0.01)
        waiting.cancel()
        async with asyncio.timeout(5), lock.reading():
            release.set()
        await holder

    asyncio.run(scenario())
