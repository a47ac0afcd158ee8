"""What the store says of a run that something outside ended."""

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx
import pytest
from prefect.exceptions import TerminationSignal

from flows.ending import TERMINATED, run_flow
from flows.runs import open_run
from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.core.errors import OutsideError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.store.store import Store
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.protocols import Learner
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import SPEAKER, Monologue


@dataclass(frozen=True)
class Terminated:
    """A learner in whose first update SIGTERM comes."""

    learner: Learner

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        return self.learner.logprobs(policy, actions)

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        os.kill(os.getpid(), signal.SIGTERM)
        return self.learner.update(policy, samples, algorithm, total_steps=total_steps, seed=seed)


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


def test_sigterm_in_an_update_leaves_the_next_agents_unbegun_and_unmentioned(
    store: Store, make_services: MakeServices, toy_config: TrainConfig
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 1, "episodes_per_problem": 2})
    config = toy_config.model_copy(update={"rollout": rollout})
    toy = make_services(config)
    assert toy.learner is not None
    names = ("first", "second", "third")
    team = Monologue(agents=tuple(replace(SPEAKER, name=name) for name in names))
    services = replace(toy, team=team, learner=Terminated(toy.learner))

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as left:
            run_flow(body())
        gc.collect()
    assert left.value.code == TERMINATED
    (run,) = store.runs.list_runs()
    assert run.status is RunStatus.INTERRUPTED
    assert [str(each.message) for each in warned if "never awaited" in str(each.message)] == []
