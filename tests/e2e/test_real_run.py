"""`mappa train` as a person runs it: real model, vLLM, sandbox, Postgres, Prefect and MLflow."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

from mappa_core.app.databases import opened_mlflow
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.settings import Settings
from mappa_core.store.opening import opened_store
from mappa_core.store.store import Store
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.torch_learner import TorchLearner
from mappa_core.train.update import policy_at
from tests.e2e.person import command_of, environment_of

AGENTS = ("problem_solver", "code_executor", "verifier")
SMALL = (
    "name=tiny",
    "problems.held_out_size=3",
    "rollout.iterations=2",
    "rollout.problems=2",
    "rollout.episodes_per_problem=3",
    "rollout.max_tokens=24",
    "engine.max_model_length=512",
    "engine.kv_cache_gib=0.25",
    # So that what the engine says can be computed again.
    "engine.dtype=float32",
    "learner.micro_batch_tokens=512",
)


@dataclass(frozen=True)
class Played:
    """A finished run, and what a person saw."""

    home: Path
    printed: str
    environment: dict[str, str]

    def mappa(self, *arguments: str) -> str:
        command = command_of(*arguments)
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=800, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


pytestmark = pytest.mark.timeout(900)  # the run itself takes three minutes on two idle cores


@pytest.fixture(scope="module")
def played(open_folder: Path, real_model: Path) -> Played:
    home = open_folder / "real-run"
    environment = environment_of(home)
    run = Played(home=home, printed="", environment=environment)
    printed = run.mappa("train", f"model={real_model}", *SMALL)
    return Played(home=home, printed=printed, environment=environment)


@pytest.fixture(scope="module")
def store(played: Played) -> Iterator[Store]:
    with opened_store(Settings(MAPPA_HOME=played.home)) as store:
        yield store


@pytest.fixture(scope="module")
def run(store: Store) -> Run:
    (run,) = store.runs.list_runs()
    return run


def test_it_ends_with_before_and_after_and_where_to_look_next(played: Played, run: Run) -> None:
    assert run.status is RunStatus.COMPLETED
    assert "before" in played.printed
    assert "95 % interval" in played.printed
    assert f"mappa show {run.name}" in played.printed
    assert "Traceback" not in played.printed


@pytest.mark.parametrize("agent", AGENTS)
def test_stored_policies_reproduce_the_samplers_logprobs(
    store: Store, run: Run, real_model: Path, tmp_path: Path, agent: str
) -> None:
    """Within 1e-4 mean absolute difference, vLLM in float32 against the learner."""
    learner = TorchLearner(
        real_model, tmp_path, LearnerConfig(device="cpu", dtype="float32", micro_batch_tokens=512)
    )
    for step in (0, 1):
        actions = store.scores.list_scored_actions(run.id, agent, step + 1)
        assert len(actions) >= 6
        recomputed = learner.logprobs(policy_at(store, run.id, agent, step), actions)
        differences = [
            abs(ours - theirs)
            for row, action in zip(recomputed, actions, strict=True)
            for ours, theirs in zip(row, action.logprobs, strict=True)
        ]
        assert fmean(differences) < 1e-4


def test_show_and_the_rows_agree(played: Played, store: Store, run: Run) -> None:
    summary = next(one for one in store.episodes.list_episodes(run.id) if one.phase == "train")
    shown = played.mappa("show", str(summary.id)[:13])
    flat = " ".join(shown.split())
    episode = store.episodes.get_episode(str(summary.id))
    for turn in episode.turns:
        assert " ".join(str(token) for token in turn.action.token_ids[:8]) in flat
        assert str(turn.action.policy_version_id) in flat
    for entry in store.scores.scores_of_episode(episode.id):
        assert str(entry.action_id) in flat
    assert flat.count("policy") >= len(episode.turns)


def test_runs_and_links(played: Played, run: Run) -> None:
    (listed,) = json.loads(played.mappa("runs", "--json"))
    assert listed["name"] == run.name
    assert listed["mlflow_run_id"] == run.mlflow_run_id
    assert listed["prefect_flow_run_id"] == run.prefect_flow_run_id
    assert run.sandbox_tier
    assert run.sandbox_tier != "unsafe-subprocess"


def test_checkpoints_are_registered_candidates(played: Played, store: Store, run: Run) -> None:
    last = {
        policy.agent: (policy, saved) for policy, saved in store.policies.list_checkpoints(run.id)
    }
    with opened_mlflow(Settings(MAPPA_HOME=played.home)) as address:
        for agent in AGENTS:
            policy, saved = last[agent]
            assert policy.step == 2
            version = candidate(address, f"mappa-mathchat-{agent}")
            assert version["checkpoint"] == str(saved.id)
            assert version["run"] == run.mlflow_run_id


def candidate(address: str, name: str) -> dict[str, str]:
    """CoachCall in a process of its own: in this one MLflow would meet Prefect's server tables."""
    script = (
        "import json, sys; from mlflow import MlflowClient; "
        "found = MlflowClient(sys.argv[1]).get_model_version_by_alias(sys.argv[2], 'candidate'); "
        "print(json.dumps({'checkpoint': found.tags['mappa.checkpoint_id'], 'run': found.run_id}))"
    )
    command = [sys.executable, "-c", script, address, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])
