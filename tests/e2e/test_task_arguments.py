"""Prefect does not look into what a task of an episode is given."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.utilities import collections

from flows.rollout import rollout, unsearched
from mappa_core.app.config import TrainConfig
from mappa_core.app.runs import prepare_run, stored_run
from mappa_core.app.services import use
from mappa_core.core.records.episodes import Action, Episode, Problem
from tests.e2e.conftest import MakeServices


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


def test_a_rollouts_tasks_are_given_episodes_so(
    make_services: MakeServices, toy_config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"iterations": 1, "episodes_per_problem": 2, "granularity": "action"}
    config = toy_config.model_copy(update={"rollout": toy_config.rollout.model_copy(update=short)})
    services, visit, visited = make_services(config), collections.visit_collection, set[type]()

    def seen(expr: object, *args: Any, **kwargs: Any) -> object:
        # What a task gives is looked at, too, but no deeper than its own elements.
        if kwargs["max_depth"] < 0:
            visited.add(type(expr))
        return visit(expr, *args, **kwargs)

    async def body() -> None:
        await services.engine.start()
        with use(services):
            run = prepare_run(services, stored_run(services, config, None), config)
            # What Prefect visits inside of what it is given goes by this name.
            monkeypatch.setattr(collections, "visit_collection", seen)
            await rollout(run.id, "train", 1, 0, config)

    asyncio.run(body())
    assert TrainConfig in visited
    assert not visited & {Action, Episode, Problem}
