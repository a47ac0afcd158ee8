"""A run that is killed again and again loses nothing that was acknowledged, and ends the same."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from prefect.settings import PREFECT_API_URL

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.core.records.runs import RunStatus
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.conftest import NewDatabase
from tests.e2e.conftest import MakeServices

ROOT = Path(__file__).parents[2]
WHOLE_RUN = 2 * 4 + 3 * (2 * 12 + 1)
"""Lines: held-out actions before and after; three times 12 actions, 12 scores and an update."""
ORPHANS = """
SELECT count(*) FROM mappa.episode LEFT JOIN mappa.action ON action.episode_id = episode.id
WHERE action.id IS NULL AND episode.stop_reason IS NOT NULL
"""
USED = """
SELECT learned.iteration, action.id FROM mappa.update_action AS entry
JOIN mappa.update AS learned ON learned.id = entry.update_id
JOIN mappa.action ON action.id = entry.action_id
"""


@dataclass
class Victim:
    """One run in one database, started as often as it takes."""

    url: str
    model: Path
    checkpoints: Path
    config: TrainConfig

    def start(
        self, resume: str | None = None, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        config = json.dumps(self.config.model_dump(mode="json"))
        words = [self.url, str(self.model), str(self.checkpoints), config]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.victim", *words, *([resume] if resume else [])],
            cwd=ROOT,
            env=os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
            stdin=stdin,
            stdout=subprocess.PIPE,
            text=True,
        )

    def play(self, resume: str | None, kill_after: int | None) -> Counter[tuple[str, UUID]]:
        """What was acknowledged until the process ended, or was killed after so many lines."""
        acknowledged: Counter[tuple[str, UUID]] = Counter()
        with self.start(resume) as process:
            assert process.stdout is not None
            for line in process.stdout:
                match line.split():
                    case ["acknowledged", kind, name]:
                        acknowledged[kind, UUID(name)] += 1
                    case _:
                        continue
                if acknowledged.total() == kill_after:
                    process.kill()
            process.wait(120)
        assert process.returncode == (0 if kill_after is None else -9)
        return acknowledged


@pytest.fixture
def config(toy_config: TrainConfig) -> TrainConfig:
    rollout = {"iterations": 3, "episodes_per_problem": 6}
    shorter = toy_config.rollout.model_copy(update=rollout)
    return toy_config.model_copy(update={"rollout": shorter})


TWENTY = pytest.param(20, 0, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


SLOWER = pytest.param(3, 1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])


@pytest.mark.parametrize(("kills", "async_level"), [(3, 0), SLOWER, TWENTY])
def test_nothing_acknowledged_is_lost(
    store: Store,
    make_services: MakeServices,
    new_database: NewDatabase,
    tiny_model: Path,
    tmp_path: Path,
    config: TrainConfig,
    kills: int,
    async_level: int,
) -> None:
    rollout = config.rollout.model_copy(update={"async_level": async_level})
    config = config.model_copy(update={"rollout": rollout})
    undisturbed = play_here(make_services(config), config)
    victim = Victim(new_database(), tiny_model, tmp_path / "killed", config)
    killed = Store.open(victim.url)
    chance = random.Random(kills)
    # Spread over the run; what is there already a resumed process does not acknowledge again.
    lines = WHOLE_RUN // (kills + 1)
    resume, acknowledged = None, Counter[tuple[str, UUID]]()
    for _ in range(kills):
        acknowledged += victim.play(resume, chance.randint(1, lines))
        (run,) = killed.runs.list_runs()
        resume = str(run.id)
        assert_there_once(victim.url, acknowledged)
    acknowledged += victim.play(resume, None)
    (run,) = killed.runs.list_runs()
    assert run.status is RunStatus.COMPLETED
    assert_there_once(victim.url, acknowledged)
    assert acknowledged.total() == len(acknowledged) <= WHOLE_RUN
    assert_every_update_used_its_actions(victim.url, killed, run.id)
    assert weights(killed, run.id) == weights(store, undisturbed)
    killed.close()


def play_here(services: Services, config: TrainConfig) -> UUID:
    """The same run, undisturbed; returns its id."""

    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    asyncio.run(body())
    (run,) = services.store.runs.list_runs()
    return run.id


def assert_there_once(url: str, acknowledged: Counter[tuple[str, UUID]]) -> None:
    tables = {"action": "action", "score": "coach_score", "update": "update"}
    with psycopg.connect(for_psql(url)) as connection:
        for kind, table in tables.items():
            rows = connection.execute(f'SELECT id FROM mappa."{table}"'.encode()).fetchall()
            stored = Counter(row[0] for row in rows)
            assert {name for told, name in acknowledged if told == kind} <= set(stored)
            assert stored.total() == len(stored)
        assert connection.execute(ORPHANS).fetchone() == (0,)


def assert_every_update_used_its_actions(url: str, store: Store, run_id: UUID) -> None:
    with psycopg.connect(for_psql(url)) as connection:
        used = connection.execute(USED).fetchall()
    for iteration in (1, 2, 3):
        actions = store.scores.list_scored_actions(run_id, "speaker", iteration)
        assert len(actions) == 12
        assert sorted(action.action_id for action in actions) == sorted(
            name for of, name in used if of == iteration
        )


def weights(store: Store, run_id: UUID) -> list[str]:
    return [checkpoint.sha256 for _, checkpoint in store.policies.list_checkpoints(run_id)]
