"""A run whose coach changes its mind is stopped, and what was found stays."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from prefect import get_client

from flows.audit import audit
from flows.pages import key_of
from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.audit.config import AuditConfig
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import CoachError
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.store.store import Store
from tests.builders import make_run
from tests.e2e.artifacts import artifacts_of
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import AlphabetCoach, letter_share

EPISODES = 16
"""Of two iterations: two problems, four rollouts each."""


async def events_of(run: str) -> list[dict[str, object]]:
    """The audit's events about a run, as an automation would see them; they take a moment."""
    wanted = {"filter": {"event": {"prefix": ["mappa.audit."]}}}
    for _ in range(100):
        async with get_client() as client:
            answer = await client._client.post("/events/filter", json=wanted)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        found = [
            {**event["payload"], "event": event["event"]}
            for event in answer.json()["events"]
            if event["resource"]["prefect.resource.name"] == run
        ]
        if any(event["event"] == "mappa.audit.drift" for event in found):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError("no event arrived")


class Hardening(AlphabetCoach):
    """After two iterations and their anchors, everything is worth five points less."""

    calls = 0

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.calls += 1
        points = 5 + 5 * letter_share(case.text)
        harder = self.calls > EPISODES + 4 * (2 + 2)
        return CoachScore(value=points - 5 * harder, rationale="letters are good")


def test_drift_stops_the_run_where_the_configuration_says_so(
    store: Store,
    make_services: MakeServices,
    toy_config: TrainConfig,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 6, "episodes_per_problem": 4})
    watched = AuditConfig(anchors=4, repeats=2, stop_on=("coach",))
    config = toy_config.model_copy(update={"rollout": rollout, "audit": watched})
    services = replace(make_services(config, Hardening()), audit=AuditStore(store.database))

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    with pytest.raises(CoachError, match=r"coach has drifted since iteration 3.*audit\.stop_on"):
        asyncio.run(body())
    (run,) = store.runs.list_runs()
    assert run.status is RunStatus.FAILED
    told = str([page for page in artifacts_of(run) if page.key == key_of(run)][-1].data)
    assert "coach has drifted since iteration 3" in told
    assert f"    mappa train --resume {run.name}\n" in told
    assert services.audit is not None
    drifts = [
        event for event in asyncio.run(events_of(run.name)) if event["event"] == "mappa.audit.drift"
    ]
    assert {(event["cause"], event["since"]) for event in drifts} == {("coach", 3)}
    alerts = services.audit.findings(run.id, "alert")
    assert {f.verdict for f in alerts if f.subject == "drift: coach"} == {"coach"}
    (anchors,) = [f for f in services.audit.findings(run.id) if f.subject == "anchors"]
    assert (anchors.verdict, anchors.iteration) == ("coach", 3)
    stopped_at = max(f.iteration for f in alerts if f.iteration is not None)

    # It goes on where the configuration no longer says so, and finds what it had left.
    lenient = watched.model_copy(update={"stop_on": ()})
    again = replace(make_services(config, Hardening()), audit=services.audit)

    async def resume() -> None:
        await again.engine.start()
        with use(again):
            await train(config.model_copy(update={"audit": lenient}), resume=run.name)

    asyncio.run(resume())
    (run,) = store.runs.list_runs()
    assert run.status is RunStatus.COMPLETED
    seen = {f.iteration for f in services.audit.findings(run.id, "alert")}
    assert stopped_at in seen
    services.audit.close()

    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    # One that has nothing to audit, as a run that measures another has not, is not the newest.
    store.runs.add_run(make_run("newer", started_at=datetime.now(UTC)))
    # One task type: there is nothing to prefer.
    assert asyncio.run(audit()) == "cannot tell"
