"""One episode that cannot go on ends the iteration, and none of the others with it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flows.rollout import rollout
from flows.runs import open_run
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.core.errors import TrackerError
from mappa_core.core.records.episodes import (
    Completion,
    Episode,
    FinishReason,
    GenerationRequest,
    PolicyVersion,
)
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.fakes.tracking import MemoryTracker


class Refusing(MemoryTracker):
    """Takes no traces."""

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        raise TrackerError("MLflow refused")


class Slow:
    """An engine that answers the last of so many requests; the others wait for ever."""

    def __init__(self, expected: int) -> None:
        self.expected, self.waiting = expected, 0

    async def load(self, policy: PolicyVersion) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> Completion:
        self.waiting += 1
        try:
            if self.waiting < self.expected:
                await asyncio.Event().wait()
            said, stop = (1,), FinishReason.STOP
            return Completion(token_ids=said, logprobs=(-1.0,), finish_reason=stop, seconds=0.1)
        finally:
            self.waiting -= 1

    async def close(self) -> None:
        pass


def test_episodes_beside_a_failing_one_stay_to_be_played(
    store: Store, make_services: MakeServices, toy_config: TrainConfig
) -> None:
    changes = {"iterations": 1, "episodes_per_problem": 2}
    config = toy_config.model_copy(
        update={"rollout": toy_config.rollout.model_copy(update=changes)}
    )

    async def body() -> int:
        engine = Slow(expected=4)
        services = replace(make_services(config), engine=engine, tracker=Refusing())
        with use(services), pytest.raises(TrackerError, match="refused"):
            async with open_run(services, config) as run:
                await rollout(run.id, "train", 1, 0, config)
        return engine.waiting

    # Who still plays when the engine is closed takes that for its episode's failure.
    assert asyncio.run(body()) == 0
    (run,) = store.runs.list_runs()
    assert (run.status, run.error) == (RunStatus.FAILED, "MLflow refused")
    figures = store.figures.get_iteration_figures(run.id, "train", 1)
    assert (figures.episodes, figures.failed) == (1, 0)
