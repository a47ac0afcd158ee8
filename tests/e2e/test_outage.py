"""Postgres dies in the middle of a run: the run waits, says so, and loses nothing."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored
from mappa_core.store import schema
from mappa_core.store.embedded import EmbeddedPostgres, start_embedded
from mappa_core.store.store import Store
from tests.e2e.toy import AlphabetCoach, toy_services


@dataclass
class Saboteur:
    """A coach that kills Postgres at its `when`-th score, and has it started some seconds later."""

    server: EmbeddedPostgres
    home: Path
    when: int
    seconds: float
    coach: AlphabetCoach = field(default_factory=AlphabetCoach)

    @property
    def identity(self) -> CoachIdentity:
        return self.coach.identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.when -= 1
        if self.when == 0:
            postmaster = (self.home / "cluster" / "postmaster.pid").read_text().splitlines()[0]
            os.kill(int(postmaster), signal.SIGKILL)
            threading.Timer(self.seconds, self.server.revive).start()
        return await self.coach.score(case)


@pytest.fixture
def home(open_folder: Path) -> Path:
    return open_folder / "to be killed"


@pytest.fixture
def server(home: Path) -> Iterator[EmbeddedPostgres]:
    with start_embedded(home) as server:
        schema.upgrade(server.url("mappa"))
        yield server


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_run_waits_for_postgres_and_goes_on(
    server: EmbeddedPostgres,
    home: Path,
    tiny_model: Path,
    tmp_path: Path,
    toy_config: TrainConfig,
    seconds: float,
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 2, "episodes_per_problem": 6})
    config = toy_config.model_copy(update={"rollout": rollout})
    said: list[str] = []
    outage_retry = OutageRetry(seconds=120, tell=said.append)
    store = Store.open(server.url("mappa"), outage_retry)
    coach = Saboteur(server=server, home=home, when=7, seconds=seconds)
    services = toy_services(config, store, tiny_model, tmp_path, coach)

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    asyncio.run(body())
    (run,) = store.runs.list_runs()
    assert run.status is RunStatus.COMPLETED
    assert any("waiting up to 120 s" in message for message in said)
    assert said[-1].startswith("back after ")
    for iteration in (1, 2):
        actions = store.scores.list_scored_actions(run.id, "speaker", iteration)
        assert len(actions) == 12
        assert all(action.score is not None for action in actions)
    assert len(store.policies.list_checkpoints(run.id)) == 2
    store.close()
