"""A run that another process trains is refused, and nothing of it is changed."""

import asyncio
from dataclasses import replace

import pytest

from flows.train import train
from mappa_core import bootstrap
from mappa_core.adapters.store import claims
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import RunBusy
from tests.builders import make_run
from tests.e2e.conftest import MakeServices


def test_a_busy_run_is_left_as_it_was(
    store: PostgresStore,
    make_services: MakeServices,
    toy_config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.1)
    services = make_services(toy_config)
    run = replace(make_run("busy"), config=toy_config.model_dump(mode="json"))
    store.open_run(run)
    before = store.run(str(run.id))

    async def body() -> None:
        await services.engine.start()
        with bootstrap.use(services):
            await train(toy_config, "busy")

    with store.claim_run(run.id), pytest.raises(RunBusy, match="another process"):
        asyncio.run(body())
    assert store.run(str(run.id)) == before
