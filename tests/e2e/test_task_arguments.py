"""Prefect does not look into what a task of an episode is given."""

import asyncio
from dataclasses import dataclass

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.rollout import unsearched


@dataclass
class Watched:
    """Remembers who looked at its tokens."""

    tokens: tuple[int, ...]
    looks: int = 0

    def __getattribute__(self, name: str) -> object:
        if name == "tokens":
            self.looks += 1
        return super().__getattribute__(name)


@task(task_run_name="of {number}", cache_policy=NO_CACHE)
async def given(watched: Watched, number: int) -> int:
    assert type(watched) is Watched
    return number


def test_what_a_task_is_given_is_not_searched() -> None:
    searched, whole = Watched((1, 2)), Watched((1, 2))

    @flow
    async def both() -> tuple[int, int]:
        return await given(searched, 3), await unsearched(given)(whole, 4)

    assert asyncio.run(both()) == (3, 4)
    assert searched.looks > 0
    assert whole.looks == 0
