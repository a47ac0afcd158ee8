"""Opening a run's services, where what they are does not matter."""

import asyncio
import gc

import pytest

from mappa_core.app import services
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import open_services
from mappa_core.core.settings import Settings


def test_garbage_collections_pass_by_what_services_are_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[str] = []

    def collected() -> bool:
        return any(each is built for each in gc.get_objects())

    async def build(*_: object, **__: object) -> list[str]:
        assert collected()
        return built

    async def opened() -> None:
        async with open_services(TrainConfig(), Settings()) as found:
            assert found is built
            assert not collected()
        assert collected()

    monkeypatch.setattr(services, "check_inputs", lambda *_, **__: None)
    monkeypatch.setattr(services, "_build", build)
    asyncio.run(opened())
