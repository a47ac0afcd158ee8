"""An update that leaves its band is not taken, is recorded with the reason, and raises an event."""

import asyncio

import pytest
from prefect.events.clients import AssertingEventsClient
from prefect.events.worker import EventsWorker

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> EventsWorker:
    """Prefect's own recorder of events, in the place of the server's."""
    worker = EventsWorker.instance(AssertingEventsClient)
    monkeypatch.setattr(EventsWorker, "instance", lambda *_: worker)
    return worker


def test_a_guarded_update_is_skipped_with_its_reason(
    store: Store, make_services: MakeServices, toy_config: TrainConfig, events: EventsWorker
) -> None:
    config = TrainConfig.model_validate(
        toy_config.model_dump()
        | {
            "rollout": toy_config.rollout.model_dump() | {"iterations": 1},
            "algorithm": {"guard": {"grad_norm_max": 1e-9}},
        }
    )

    def play(resume: str | None = None) -> None:
        services = make_services(config)

        async def body() -> None:
            await services.engine.start()
            with use(services):
                await train(config, resume)

        asyncio.run(body())

    play()
    (run,) = store.runs.list_runs()
    update = store.updates.get_update(run.id, "speaker", 1)
    assert update is not None
    assert update.skipped is not None
    assert "above algorithm.guard.grad_norm_max=1e-09" in update.skipped
    assert update.metrics["skipped"] == 1.0
    play(resume=run.name)
    events.drain()
    sent = [one for client in AssertingEventsClient.all for one in client.events]
    # Resumed, the run finds the update: its event is not raised twice.
    (event,) = [one for one in sent if one.event == "mappa.update.skipped"]
    assert event.resource.id == "mappa.agent.speaker"
    assert event.payload == {"run": str(run.id), "iteration": 1, "reason": update.skipped}
