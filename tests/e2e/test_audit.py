"""A run whose coach changes its mind is stopped, and what was found stays."""

import asyncio
from dataclasses import replace

import pytest

from flows.auditing import audit
from flows.train import train
from mappa_core import bootstrap
from mappa_core.adapters.store.auditing import PostgresAudit
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.config import AuditConfig, TrainConfig
from mappa_core.domain.errors import CoachError
from mappa_core.domain.records import CoachCase, CoachScore, RunStatus, Unscored
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import LetterCoach, letter_share

EPISODES = 16
"""Of two iterations: two problems, four rollouts each."""


class Hardening(LetterCoach):
    """After two iterations and their anchors, everything is worth five points less."""

    calls = 0

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.calls += 1
        points = 5 + 5 * letter_share(case.text)
        harder = self.calls > EPISODES + 4 * (2 + 2)
        return CoachScore(value=points - 5 * harder, rationale="letters are good")


def test_drift_stops_the_run_where_the_configuration_says_so(
    store: PostgresStore,
    make_services: MakeServices,
    toy_config: TrainConfig,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 6, "episodes_per_problem": 4})
    watched = AuditConfig(anchors=4, repeats=2, stop_on=("coach",))
    config = toy_config.model_copy(update={"rollout": rollout, "audit": watched})
    services = replace(make_services(config, Hardening()), audit=PostgresAudit.beside(store))

    async def body() -> None:
        await services.engine.start()
        with bootstrap.use(services):
            await train(config)

    with pytest.raises(CoachError, match=r"coach has drifted since iteration 3.*audit\.stop_on"):
        asyncio.run(body())
    (run,) = store.runs()
    assert run.status is RunStatus.FAILED
    assert services.audit is not None
    (anchors,) = [f for f in services.audit.findings(run.id) if f.subject == "anchors"]
    assert (anchors.verdict, anchors.iteration) == ("coach", 3)
    services.audit.close()

    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    # One task type: there is nothing to prefer.
    assert asyncio.run(audit()) == "cannot tell"
