"""What the store says of a run that something outside ended."""

import asyncio
import signal

import httpx
import pytest
from prefect.exceptions import TerminationSignal

from flows.runs import open_run
from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import OutsideError
from mappa_core.core.records.runs import RunStatus
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices


@pytest.mark.parametrize(
    ("stop", "raised", "status", "says"),
    [
        (TerminationSignal(signal.SIGTERM), TerminationSignal, RunStatus.INTERRUPTED, None),
        (asyncio.CancelledError(), asyncio.CancelledError, RunStatus.INTERRUPTED, None),
        (httpx.ConnectError("no"), OutsideError, RunStatus.FAILED, "Prefect went away"),
    ],
)
def test_how_a_run_ended_is_written_down(
    store: Store,
    make_services: MakeServices,
    toy_config: TrainConfig,
    stop: BaseException,
    raised: type[BaseException],
    status: RunStatus,
    says: str | None,
) -> None:
    async def body() -> None:
        async with open_run(make_services(toy_config), toy_config):
            raise stop

    with pytest.raises(raised):
        asyncio.run(body())
    (run,) = store.runs.list_runs()
    assert run.status is status
    assert (run.error or "").startswith(says or "")
    assert (run.error is None) is (says is None)
