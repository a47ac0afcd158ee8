"""The quickstart's team on its engine, killed twice at random, against two undisturbed runs.

Prints what of it was the same. `MAPPA_KILL_SEED=N` repeats the points of an earlier run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from uuid import UUID

import psutil
import psycopg
import pytest
import torch
from safetensors.torch import load_file

from mappa_core.core.records.runs import RunStatus
from mappa_core.core.records.scores import ScoredAction
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.conftest import NewDatabase

# Starts `mappa train` five times: eleven minutes on two cores that had other work as well.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

AGENTS = ("problem_solver", "code_executor", "verifier")
ITERATIONS = (1, 2)
SMALL = (
    "problems.held_out_size=1",
    "rollout.iterations=2",
    "rollout.problems=2",
    "rollout.episodes_per_problem=2",
    "rollout.max_tokens=24",
    "engine.kv_cache_gib=0.25",
    "engine.dtype=float32",
    "learner.dtype=float32",
)
ROWS = """
SELECT id FROM mappa.action UNION ALL SELECT id FROM mappa.coach_score
UNION ALL SELECT id FROM mappa.update
"""
DOUBLED = """
SELECT count(*) FROM (
    SELECT 1 FROM mappa.action GROUP BY episode_id, turn_index HAVING count(*) > 1
    UNION ALL SELECT 1 FROM mappa.coach_score WHERE trained GROUP BY action_id HAVING count(*) > 1
    UNION ALL SELECT 1 FROM mappa.update GROUP BY run_id, agent, iteration HAVING count(*) > 1
) AS doubled
"""
USED = """
SELECT learned.agent, learned.iteration, entry.action_id FROM mappa.update_action AS entry
JOIN mappa.update AS learned ON learned.id = entry.update_id
"""
Place = tuple[str, int, UUID, int, int]
"""Agent, iteration, problem, rollout, turn: the same in every run."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """Where all runs of this file live, each with a database of its own."""

    folder: Path
    model: Path

    @property
    def errors(self) -> Path:
        return self.folder / "stderr"

    def start(self, url: str, resume: UUID | None = None) -> subprocess.Popen[bytes]:
        """`mappa train` as a person starts it."""
        words = ["--config", "quickstart", f"model={self.model}", *SMALL]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL")
        }
        with self.errors.open("ab") as errors:
            return subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("mappa")),
                    "train",
                    *(words if resume is None else ["--resume", str(resume)]),
                ],
                env=kept | {"MAPPA_HOME": str(self.folder), "MAPPA_DATABASE_URL": url},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def finish(self, url: str, resume: UUID | None = None) -> None:
        with self.start(url, resume) as process:
            process.wait(1200)
        assert process.returncode == 0, self.errors.read_text()[-2000:]

    def kill_after(self, rows: int, url: str, resume: UUID | None = None) -> set[UUID]:
        """Start, kill once the store has so many rows; returns those that it had before."""
        with self.start(url, resume) as process:
            seen: set[UUID] = set()
            while len(seen) < rows:
                assert process.poll() is None, self.errors.read_text()[-2000:]
                time.sleep(0.02)
                seen = rows_of(url)
            servers = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        _, alive = psutil.wait_procs(servers, timeout=60)
        assert not [one for one in alive if one.is_running() and "VLLM" in " ".join(one.cmdline())]
        return seen


def rows_of(url: str) -> set[UUID]:
    with psycopg.connect(for_psql(url)) as connection:
        return {row[0] for row in connection.execute(ROWS).fetchall()}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a finished run left."""

    actions: dict[Place, ScoredAction]
    weights: dict[tuple[str, int], dict[str, torch.Tensor]]
    """By agent and step."""
    rows: int


def ended(url: str) -> Ended:
    store = Store.open(url)
    (run,) = store.runs.list_runs()
    assert run.status is RunStatus.COMPLETED
    actions = {
        (agent, iteration, one.problem_id, one.rollout_index, one.turn_index): one
        for agent in AGENTS
        for iteration in ITERATIONS
        for one in store.scores.list_scored_actions(run.id, agent, iteration)
    }
    weights = {
        (policy.agent, policy.step): load_file(
            Path(checkpoint.directory) / "adapter_model.safetensors"
        )
        for policy, checkpoint in store.policies.list_checkpoints(run.id)
    }
    store.close()
    with psycopg.connect(for_psql(url)) as connection:
        assert connection.execute(DOUBLED).fetchone() == (0,)
        used = connection.execute(USED).fetchall()
    assert sorted(used) == sorted(
        (agent, iteration, one.action_id) for (agent, iteration, *_), one in actions.items()
    )
    assert len(weights) == len(AGENTS) * len(ITERATIONS)
    return Ended(actions=actions, weights=weights, rows=len(rows_of(url)))


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Two runs of one configuration side by side."""

    actions: int
    """Of both, by place."""
    same_tokens: int
    largest_logprob: float
    """Absolute difference, over the actions with the same tokens."""
    largest_weight: dict[int, float]
    """Absolute difference by step, over all agents; 0 is bit for bit."""
    same_until: int
    """The last step before which every token was the same."""


def differences(left: Ended, right: Ended) -> Differences:
    places = sorted(left.actions.keys() | right.actions.keys(), key=str)
    same = {
        place
        for place in left.actions.keys() & right.actions.keys()
        if left.actions[place].token_ids == right.actions[place].token_ids
    }
    other = min((place[1] for place in places if place not in same), default=max(ITERATIONS) + 1)
    return Differences(
        actions=len(places),
        same_tokens=len(same),
        largest_logprob=max(
            abs(ours - theirs)
            for place in same
            for ours, theirs in zip(
                left.actions[place].logprobs, right.actions[place].logprobs, strict=True
            )
        ),
        largest_weight={
            step: max(_largest(left, right, agent, step) for agent in AGENTS) for step in ITERATIONS
        },
        same_until=other - 1,
    )


def _largest(left: Ended, right: Ended, agent: str, step: int) -> float:
    ours, theirs = left.weights[agent, step], right.weights[agent, step]
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def played(home: Home, urls: Sequence[str], seed: int) -> tuple[list[int], list[Ended]]:
    """Two undisturbed runs and a killed one; returns where it was killed, and all three."""
    for url in urls[:2]:
        home.finish(url)
    undisturbed = [ended(url) for url in urls[:2]]
    points = sorted(random.Random(seed).sample(range(1, undisturbed[0].rows), 2))
    resume, seen = None, set[UUID]()
    for point in points:
        seen |= home.kill_after(point, urls[2], resume)
        assert seen <= rows_of(urls[2])
        store = Store.open(urls[2])
        (run,) = store.runs.list_runs()
        store.close()
        resume = run.id
    home.finish(urls[2], resume)
    assert seen <= rows_of(urls[2])
    return points, [*undisturbed, ended(urls[2])]


def test_a_killed_run_loses_nothing_and_learns_the_same(
    open_folder: Path,
    real_model: Path,
    new_database: NewDatabase,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("MAPPA_KILL_SEED") or random.SystemRandom().randrange(2**31))
    folder = open_folder / "killed-team"
    folder.mkdir(mode=0o755)
    urls = [new_database() for _ in range(3)]
    points, runs = played(Home(folder=folder, model=real_model), urls, seed)
    names = ("undisturbed", "undisturbed again", "killed twice")
    with capsys.disabled():
        sys.stdout.write(f"\nMAPPA_KILL_SEED={seed}: killed at rows {points} of {runs[0].rows}\n")
        for (one, left), (two, right) in combinations(zip(names, runs, strict=True), 2):
            found = differences(left, right)
            sys.stdout.write(f"{one} / {two}: {found}\n")
            # A rounding that flips one token changes the rest of its episode, four actions at most.
            first = sum(place[1] == 1 for place in left.actions)
            assert found.same_until >= 1 or found.same_tokens >= first - 4
            assert found.largest_logprob < 1e-4
            assert all(found.largest_weight[step] == 0 for step in ITERATIONS[: found.same_until])
            if found.same_tokens == found.actions:
                assert left.rows == right.rows
