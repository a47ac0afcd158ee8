"""A run that cannot be had, or not be opened, says so."""

import asyncio
from dataclasses import replace

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.core.errors import RunBusy, TrackerError
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.store import claims
from mappa_core.store.store import Store
from tests.builders import make_run
from tests.e2e.conftest import MakeServices
from tests.fakes.tracking import MemoryTracker


def test_a_busy_run_is_left_as_it_was(
    store: Store,
    make_services: MakeServices,
    toy_config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "TAKE_SECONDS", 0.1)
    services = make_services(toy_config)
    run = replace(make_run("busy"), config=toy_config.model_dump(mode="json"))
    store.runs.add_run(run)
    before = store.runs.get_run(str(run.id))

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(toy_config, "busy")

    with store.runs.claim_run(run.id), pytest.raises(RunBusy, match="another process"):
        asyncio.run(body())
    assert store.runs.get_run(str(run.id)) == before


class Closed(MemoryTracker):
    """Opens no run."""

    def start(self, run: Run) -> str:
        raise TrackerError("MLflow refused")


def test_a_run_that_could_not_be_opened_has_failed_and_not_been_killed(
    store: Store, make_services: MakeServices, toy_config: TrainConfig
) -> None:
    services = replace(make_services(toy_config), tracker=Closed())

    async def body() -> None:
        with use(services):
            await train(toy_config)

    with pytest.raises(TrackerError):
        asyncio.run(body())
    (run,) = store.runs.list_runs()
    assert (run.status, run.error) == (RunStatus.FAILED, "MLflow refused")
