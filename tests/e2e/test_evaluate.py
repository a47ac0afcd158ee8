"""Evaluating a stored run: more samples, another temperature, and no coach is asked for scores."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import psycopg
import pytest

from flows.evaluate import evaluate
from flows.train import train
from mappa_cli.printing.evaluations import evaluation_json
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.app.services import use
from mappa_core.core.errors import ConfigError, RunBusy, TrackerError
from mappa_core.core.records.episodes import Episode
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import CoachCase, CoachScore, ScoreEntry, Unscored
from mappa_core.evaluate.evaluation import Evaluation
from mappa_core.store import claims
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import AlphabetCoach
from tests.fakes.tracking import MemoryTracker


class Silent(AlphabetCoach):
    """A coach that says when it was asked last."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        self.asked += 1
        return await super().score(case)


@pytest.fixture
def rows(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(for_psql(database_url)) as connection:
        yield connection


def test_a_stored_run_is_measured_again(
    store: Store,
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
        with use(services):
            await train(config)
            coach.asked = 0
            (run,) = store.runs.list_runs()
            more = await evaluate(run.name, drawn(samples=3))
            hotter = await evaluate(run.name, drawn(samples=2, temperature=1.5))
            again = await evaluate(run.name, drawn(samples=2, temperature=1.5))
        return more, hotter, again

    more, hotter, again = asyncio.run(body())
    assert coach.asked == 0
    trained = next(run for run in store.runs.list_runs() if run.name == more.run)
    assert (more.after.problems, more.after.episodes, more.after.failed) == (4, 12, 0)
    assert set(more.after.pass_at) == {1, 2, 3}
    assert more.success.problems == 4
    assert evaluation_json(more)["verdict"] == {"success": "cannot tell"}

    # Another temperature is another run, found again; the first keeps what it measured.
    assert hotter.run == again.run == f"{more.run}-eval-{hotter.run[-6:]}"
    assert hotter.metrics() == again.metrics()
    other = store.runs.get_run(hotter.run)
    assert other.status is RunStatus.COMPLETED
    assert store.runs.get_run(more.run).status is RunStatus.COMPLETED
    temperatures = rows.execute(
        "SELECT e.run_id, a.temperature, count(*), count(DISTINCT a.seed) FROM mappa.action a "
        "JOIN mappa.episode e ON e.id = a.episode_id WHERE e.phase = 'held_out' GROUP BY 1, 2"
    ).fetchall()
    # Seeds are fixed per problem and sample: the same before and after, and in both runs.
    assert set(temperatures) == {(trained.id, 1.0, 24, 12), (other.id, 1.5, 16, 8)}

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


class Refusing(MemoryTracker):
    """Takes traces until it does not."""

    refuses = False

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        if self.refuses:
            raise TrackerError("MLflow refused")
        super().trace(tracker_run_id, episode, entries)


def test_an_evaluation_has_the_run_that_it_writes_to_and_says_how_that_ended(
    store: Store,
    make_services: MakeServices,
    toy_config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "TAKE_SECONDS", 0.1)
    config = with_overrides(toy_config, ["rollout.iterations=1", "rollout.episodes_per_problem=2"])
    hotter = with_overrides(config, ["evaluation.temperature=1.5"])
    tracker = Refusing()
    services = replace(make_services(config), tracker=tracker)

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)
            (run,) = store.runs.list_runs()
            for other, said in (
                ("model=another", "an evaluation keeps team, model"),
                ("team=single", "an evaluation keeps team, model"),
                ("evaluation.samples=1000", "Prefect task runs"),
            ):
                with pytest.raises(ConfigError, match=said):
                    await evaluate(run.name, with_overrides(config, [other]))
            with store.runs.claim_run(run.id):
                with pytest.raises(RunBusy, match="in the hands of another process"):
                    await evaluate(run.name, config)
                # No process trains or evaluates this one.
                tracker.refuses = True
                with pytest.raises(TrackerError, match="refused"):
                    await evaluate(run.name, hotter)
            other = next(each for each in store.runs.list_runs() if each.measures == run.name)
            assert (other.status, other.error) == (RunStatus.FAILED, "MLflow refused")
            assert tracker.statuses[other.mlflow_run_id or ""] is RunStatus.FAILED
            with store.runs.claim_run(other.id), pytest.raises(RunBusy):
                await evaluate(run.name, hotter)
            assert store.runs.get_run(other.name) == other
            for unfit in (evaluate(other.name, hotter), train(hotter, other.name)):
                with pytest.raises(ConfigError, match=f"only measures run {run.name}: name that"):
                    await unfit
            assert store.runs.get_run(run.name) == run

    asyncio.run(body())


@pytest.mark.parametrize(
    ("override", "is_another"),
    [
        ("tools.servers.units.command=[units]", True),
        ("sandbox.output_kib=1", True),
        ("evaluation.temperature=0.2", True),
        ("evaluation.samples=9", False),
        ("sandbox.concurrency=9", False),
    ],
)
def test_what_changes_held_out_episodes_makes_another_measurement(
    toy_config: TrainConfig, override: str, is_another: bool
) -> None:
    changed = with_overrides(toy_config, [override])
    assert (changed.held_out_settings() != toy_config.held_out_settings()) == is_another
