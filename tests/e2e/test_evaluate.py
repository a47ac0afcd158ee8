"""Evaluating a stored run: more samples, another temperature, and nobody is asked for scores."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from flows.evaluate import Evaluation, evaluate
from flows.printing.evaluations import evaluation_json
from flows.train import train
from mappa_core import bootstrap
from mappa_core.adapters.store.connection import for_psql
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.config import TrainConfig
from mappa_core.domain.records import RunStatus
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import LetterCoach
from tests.fakes.tracking import MemoryTracker


class Silent(LetterCoach):
    """A coach that says when it was asked last."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def score(self, case):
        self.asked += 1
        return await super().score(case)


@pytest.fixture
def rows(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(for_psql(database_url)) as connection:
        yield connection


def test_a_stored_run_is_measured_again(
    store: PostgresStore,
    make_services: MakeServices,
    toy_config: TrainConfig,
    rows: psycopg.Connection,
) -> None:
    short = {"iterations": 1, "episodes_per_problem": 3}
    config = toy_config.model_copy(update={"rollout": toy_config.rollout.model_copy(update=short)})
    coach = Silent()
    services = make_services(config, coach)

    def drawn(**changes: float) -> TrainConfig:
        changed = config.evaluation.model_copy(update=changes)
        return config.model_copy(update={"evaluation": changed})

    async def body() -> tuple[Evaluation, Evaluation, Evaluation]:
        await services.engine.start()
        with bootstrap.use(services):
            await train(config)
            coach.asked = 0
            (run,) = store.runs()
            more = await evaluate(run.name, drawn(samples=3))
            hotter = await evaluate(run.name, drawn(samples=2, temperature=1.5))
            again = await evaluate(run.name, drawn(samples=2, temperature=1.5))
        return more, hotter, again

    more, hotter, again = asyncio.run(body())
    assert coach.asked == 0
    trained = next(run for run in store.runs() if run.name == more.run)
    assert (more.after.problems, more.after.episodes, more.after.failed) == (4, 12, 0)
    assert set(more.after.pass_at) == {1, 2, 3}
    assert more.success.problems == 4
    assert evaluation_json(more)["verdict"] == {"success": "cannot tell"}

    # Another temperature is another run, found again; the first keeps what it measured.
    assert hotter.run == again.run == f"{more.run}-eval-{hotter.run[-6:]}"
    assert hotter.metrics() == again.metrics()
    beside = store.run(hotter.run)
    assert beside.status is RunStatus.COMPLETED
    assert store.run(more.run).status is RunStatus.COMPLETED
    temperatures = rows.execute(
        "SELECT e.run_id, a.temperature, count(*), count(DISTINCT a.seed) FROM mappa.action a "
        "JOIN mappa.episode e ON e.id = a.episode_id WHERE e.phase = 'held_out' GROUP BY 1, 2"
    ).fetchall()
    # Seeds are fixed per problem and sample: the same before and after, and in both runs.
    assert set(temperatures) == {(trained.id, 1.0, 24, 12), (beside.id, 1.5, 16, 8)}

    # Results are rows, metrics and a manifest.
    summed = rows.execute(
        "SELECT step, sum(samples), sum(failed) FROM audit.evaluations WHERE run = %s "
        "GROUP BY step ORDER BY step",
        [more.run],
    ).fetchall()
    assert summed == [(0, 12, 0), (1, 12, 0)]
    listed = rows.execute(
        "SELECT split, statement FROM audit.manifests WHERE run = %s ORDER BY split, position",
        [more.run],
    ).fetchall()
    assert listed == [("held_out", c) for c in "wxyz"] + [("train", c) for c in "ab"]
    assert isinstance(services.tracker, MemoryTracker)
    logged = services.tracker.metrics[trained.mlflow_run_id or ""]
    assert logged[1, "held_out/pass_at_3"] == more.after.pass_at[3]
    assert logged[0, "held_out/success"] == more.before.success
