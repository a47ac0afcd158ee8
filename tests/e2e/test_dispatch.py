"""Updates computed elsewhere: by real runs of a real deployment, taken by a worker in this process.

A process worker on a work pool does the same in tests/integration/platform/test_deployed.py.
"""

import asyncio
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from prefect.client.schemas.objects import FlowRun, StateType

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.audit.config import AuditConfig
from mappa_core.audit.records import Correction, CorrectionTerm
from mappa_core.audit.store import AuditStore
from mappa_core.core import ids
from mappa_core.core.records.episodes import Completion, GenerationRequest
from mappa_core.core.records.runs import RunStatus
from mappa_core.rollout.engines.transformers.engine import TransformersEngine
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from mappa_core.train.config import AlgorithmConfig, MismatchConfig
from tests.builders import make_run
from tests.e2e.conftest import MakeServices
from tests.e2e.elsewhere import computed_here, deploy, sent, worker

MEASURED = ("seconds", "_per_second", "memory_bytes")
"""Figures of the machine, not of the update: their names end like this."""


class Imprecise(TransformersEngine):
    """Samples like its base class, and is wrong about the log-probs of two tokens in three."""

    async def generate(self, request: GenerationRequest) -> Completion:
        completion = await super().generate(request)
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        return replace(
            completion, logprobs=tuple(logprob - 0.3 * (token % 3) for token, logprob in pairs)
        )


async def run(services: Services, config: TrainConfig, resume: str | None = None) -> None:
    await services.engine.start()
    with use(services):
        await train(config, resume)


async def stopped_once_sent(services: Services, config: TrainConfig) -> None:
    """A run that is interrupted while its first update waits for a worker."""
    await deploy()
    stopped = asyncio.create_task(run(services, config))
    while not await sent(StateType.SCHEDULED):
        await asyncio.sleep(0.1)
    stopped.cancel()
    with suppress(asyncio.CancelledError):
        await stopped


def updated(store: Store) -> tuple[str, dict[str, float], list[float]]:
    """What the newest run's update came to: weights, figures, and the advantage of each action."""
    newest = store.runs.list_runs()[0]
    ((_, checkpoint),) = store.policies.list_checkpoints(newest.id)
    done = store.updates.get_update(newest.id, "speaker", 1)
    assert done is not None
    figures = {name: of for name, of in done.metrics.items() if not name.endswith(MEASURED)}
    return checkpoint.sha256, figures, sorted(each.advantage or 0.0 for each in done.entries)


def test_an_update_elsewhere_is_the_update_here(
    store: Store,
    make_services: MakeServices,
    make_remote: MakeServices,
    elsewhere: TrainConfig,
    tiny_model: Path,
) -> None:
    # Two steps, so that the trainer is asked first what it thinks of the sampler's tokens.
    mismatch = MismatchConfig(threshold=1.2, sequence_mask=1.5)
    config = elsewhere.model_copy(
        update={
            "algorithm": AlgorithmConfig(mismatch=mismatch),
            "learner": elsewhere.learner.model_copy(update={"epochs": 2}),
        }
    )

    def imprecise(services: Services) -> Services:
        ends = services.tokenizer.end_token_ids
        return replace(services, engine=Imprecise(tiny_model, config.engine, ends))

    async def body() -> list[FlowRun]:
        await deploy()
        async with worker() as taken:
            await run(imprecise(make_remote(config)), config)
        return taken

    (taken,) = asyncio.run(body())
    there = updated(store)
    (only,) = store.runs.list_runs()
    crossed = {"run_id": str(only.id), "agent": "speaker", "iteration": 1}
    assert taken.parameters == {**crossed, "config": config.model_dump(mode="json")}
    assert taken.name == "update speaker 1"

    here = computed_here(config)
    asyncio.run(run(imprecise(make_services(here)), here))
    assert len(store.runs.list_runs()) == 2
    assert updated(store) == there
    # Some were truncated, some masked, and some left as they were.
    _, figures, _ = there
    assert 0 < figures["correction_mean"] < 1.2
    assert figures["mismatch_kl"] > 0.01
    assert figures["effective_sample_size"] < 0.99


@pytest.mark.slow
def test_a_bias_is_taken_off_elsewhere_as_it_is_here(
    store: Store,
    database_url: str,
    make_services: MakeServices,
    make_remote: MakeServices,
    elsewhere: TrainConfig,
) -> None:
    audit = AuditStore(store.database)
    correction = proven_bias(store, audit)
    config = elsewhere.model_copy(
        update={"audit": AuditConfig(anchors=0, correction=str(correction.id))}
    )

    async def body() -> None:
        await deploy()
        async with worker():
            await run(replace(make_remote(config), audit=audit), config)

    asyncio.run(body())
    there = updated(store)
    assert corrected_scores(database_url) == 8
    here = computed_here(config)
    asyncio.run(run(replace(make_services(here), audit=audit), here))
    assert corrected_scores(database_url) == 16
    assert updated(store) == there
    audit.close()


def proven_bias(store: Store, audit: AuditStore) -> Correction:
    """Two points too many for whatever the toy's team says."""
    estimated_on = make_run()
    store.runs.add_run(estimated_on)
    term = CorrectionTerm(
        task_type="cue", stratum="all", estimate=2.1, points=2.0, verdict="biased"
    )
    correction = Correction(
        id=ids.content_id("correction", "toy"),
        run_id=estimated_on.id,
        iteration=3,
        coach="letters",
        rubric_sha256="0",
        terms=(term,),
    )
    audit.add([correction])
    return correction


def corrected_scores(database_url: str) -> int:
    with psycopg.connect(for_psql(database_url)) as connection:
        query = "SELECT count(*) FROM mappa.corrected_score WHERE corrected = greatest(raw - 2, 0)"
        found = connection.execute(query).fetchone()
    assert found is not None
    return int(found[0])


def test_a_stopped_run_finds_the_update_it_had_sent(
    store: Store, make_remote: MakeServices, elsewhere: TrainConfig
) -> None:
    async def body() -> list[FlowRun]:
        await stopped_once_sent(make_remote(elsewhere), elsewhere)
        (broken,) = store.runs.list_runs()
        assert broken.status is RunStatus.INTERRUPTED
        async with worker() as taken:
            await run(make_remote(elsewhere), elsewhere, broken.name)
        return taken

    assert len(asyncio.run(body())) == 1
    assert store.runs.list_runs()[0].status is RunStatus.COMPLETED


def test_a_stopped_run_may_compute_what_no_worker_took(
    store: Store,
    make_remote: MakeServices,
    make_services: MakeServices,
    elsewhere: TrainConfig,
) -> None:
    asyncio.run(stopped_once_sent(make_remote(elsewhere), elsewhere))
    (broken,) = store.runs.list_runs()
    here = computed_here(elsewhere)
    asyncio.run(run(make_services(here), here, broken.name))
    assert store.runs.list_runs()[0].status is RunStatus.COMPLETED
    computed = updated(store)

    async def late() -> list[FlowRun]:
        (waiting,) = await sent(StateType.SCHEDULED)
        async with worker() as taken:
            while waiting.id not in [each.id for each in await sent(StateType.COMPLETED)]:
                await asyncio.sleep(0.1)
        return taken

    assert len(asyncio.run(late())) == 1
    assert updated(store) == computed


@pytest.mark.slow
def test_weights_that_a_later_update_made_superfluous_may_be_gone(
    store: Store, make_remote: MakeServices, elsewhere: TrainConfig, tmp_path: Path
) -> None:
    rollout = elsewhere.rollout.model_copy(update={"iterations": 2})
    config = elsewhere.model_copy(update={"rollout": rollout})

    async def body() -> None:
        await deploy()
        async with worker():
            await run(make_remote(config), config)

    asyncio.run(body())
    (found,) = store.runs.list_runs()
    shutil.rmtree(tmp_path / "checkpoints" / str(found.id) / "speaker" / "1")
    asyncio.run(run(make_remote(config), config, found.name))
    assert store.runs.list_runs()[0].status is RunStatus.COMPLETED
